package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"knarr/node/cni/network"
)

// A node with pods is a router.
const (
	forward4 = "/proc/sys/net/ipv4/ip_forward"
	forward6 = "/proc/sys/net/ipv6/conf/all/forwarding"
)

func formerPath(stateDir string) string { return filepath.Join(stateDir, "forwarding.json") }

// forward switches forwarding on for the families in use. What it was is
// written down before it is changed, so that a crash in between loses nothing.
func forward(stateDir string, n *network.Conf) error {
	former := map[string]string{}
	if b, err := os.ReadFile(formerPath(stateDir)); err == nil {
		// Unreadable: taken to be ours already, and left on at the end.
		_ = json.Unmarshal(b, &former)
	}
	for _, p := range n.PodCIDRs {
		path := forward4
		if p.Addr().Is6() {
			path = forward6
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("forwarding: %w", err)
		}
		value := strings.TrimSpace(string(b))
		if value != "0" {
			continue
		}
		if _, ok := former[path]; !ok {
			former[path] = value
			b, err := json.Marshal(former)
			if err != nil {
				return err
			}
			if err := writeFile(formerPath(stateDir), b); err != nil {
				return err
			}
		}
		if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
			return fmt.Errorf("switch forwarding on: %w", err)
		}
	}
	return nil
}

// unforward puts back what forward found.
func unforward(stateDir string) error {
	b, err := os.ReadFile(formerPath(stateDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var former map[string]string
	if err := json.Unmarshal(b, &former); err != nil {
		return fmt.Errorf("forwarding before: %w", err)
	}
	var errs []error
	for path, value := range former {
		if path != forward4 && path != forward6 {
			continue
		}
		errs = append(errs, os.WriteFile(path, []byte(value), 0o644))
	}
	return errors.Join(errs...)
}
