// Package mode is the table of kube-proxy's modes: how connections to a Service reach
// an endpoint. It reads and writes the file that says which one ran last.
package mode

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"knarr/node/kubeproxy"
	"knarr/node/kubeproxy/ipvs"
)

// Default is the mode where none is asked for.
const Default = "nftables"

// Config is what a dataplane needs.
type Config struct {
	// Table names what this proxy has in the kernel.
	Table string
	// ClusterCIDRs and NodePorts are as in kubeproxy.Config.
	ClusterCIDRs, NodePorts []netip.Prefix
	// Scheduler is the mode ipvs' way to choose an endpoint. Default "rr". Timeouts are how
	// long it remembers connections.
	Scheduler string
	Timeouts  ipvs.Timeouts
}

// A mode is one way.
type mode struct {
	name string
	// new makes its dataplane; nil for the proxy's own.
	new func(Config) (kubeproxy.Dataplane, error)
	// remove deletes what it has left in the kernel.
	remove func(table string) error
}

// Names are the modes, for help and completion.
func Names() (names []string) {
	for _, m := range modes {
		names = append(names, m.name)
	}
	return names
}

// Check says what is wrong with a mode's name.
func Check(name string) error {
	_, err := find(name)
	return err
}

func find(name string) (mode, error) {
	if name == "" {
		name = Default
	}
	for _, m := range modes {
		if m.name == name {
			return m, nil
		}
	}
	return mode{}, fmt.Errorf("no mode %q; there are %s", name, strings.Join(Names(), ", "))
}

// Open is the dataplane of a mode; nil for the proxy's own. What another mode has left
// of an earlier run is removed before: packets must not meet both. Which one that was
// is read from the file record, and written there; without a file nothing is removed.
func Open(name, record string, c Config) (kubeproxy.Dataplane, error) {
	m, err := find(name)
	if err != nil {
		return nil, err
	}
	if record != "" {
		was, err := read(record)
		if err == nil && was.name != m.name {
			err = was.forget(c.Table)
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(record), 0o755)
		}
		if err == nil {
			err = os.WriteFile(record, []byte(m.name+"\n"), 0o644)
		}
		if err != nil {
			return nil, fmt.Errorf("proxy mode %s: %w", m.name, err)
		}
	}
	if m.new == nil {
		return nil, nil
	}
	return m.new(c)
}

// read is the mode of an earlier run; the default if none is recorded.
func read(record string) (mode, error) {
	b, err := os.ReadFile(record)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return mode{}, err
	}
	m, err := find(strings.TrimSpace(string(b)))
	if err != nil {
		return mode{}, fmt.Errorf("%s: %w", record, err)
	}
	return m, nil
}

func (m mode) forget(table string) error {
	if err := m.remove(table); err != nil {
		return fmt.Errorf("remove the rules of mode %s: %w", m.name, err)
	}
	return nil
}

// Forget deletes what the mode in the file record has left in the kernel.
func Forget(record, table string) error {
	m, err := read(record)
	if err != nil {
		return err
	}
	return m.forget(table)
}

// Remove deletes what any mode has left in the kernel.
func Remove(table string) error {
	var errs []error
	for _, m := range modes {
		errs = append(errs, m.forget(table))
	}
	return errors.Join(errs...)
}
