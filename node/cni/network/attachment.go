package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Attachment is what is remembered of a pod's link: enough to undo it without
// the pod, and to rebuild the table without asking anybody.
type Attachment struct {
	ContainerID string        `json:"containerID"`
	IfName      string        `json:"ifname"`
	Netns       string        `json:"netns,omitempty"`
	Addrs       []netip.Addr  `json:"addrs"`
	Ports       []PortMapping `json:"ports,omitempty"`
}

// key names an attachment. Neither part may contain a slash, which the
// protocol ensures for ids and the kernel for link names.
func key(containerID, ifName string) string { return containerID + ":" + ifName }

func (a *Attachment) key() string { return key(a.ContainerID, a.IfName) }

func attachmentDir(dir string) string { return filepath.Join(dir, "attachments") }

func saveAttachment(dir string, a *Attachment) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(attachmentDir(dir), 0o700); err != nil {
		return err
	}
	path := filepath.Join(attachmentDir(dir), a.key())
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// loadAttachment gives nil if there is none.
func loadAttachment(dir, key string) (*Attachment, error) {
	b, err := os.ReadFile(filepath.Join(attachmentDir(dir), key))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	a := &Attachment{}
	if err := json.Unmarshal(b, a); err != nil {
		return nil, fmt.Errorf("attachment %s: %w", key, err)
	}
	return a, nil
}

func loadAttachments(dir string) ([]*Attachment, error) {
	entries, err := os.ReadDir(attachmentDir(dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var all []*Attachment
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".tmp") {
			continue
		}
		// One that cannot be read must not cost the others their ports.
		if a, err := loadAttachment(dir, e.Name()); err == nil && a != nil {
			all = append(all, a)
		}
	}
	return all, nil
}

func removeAttachment(dir, key string) error {
	err := os.Remove(filepath.Join(attachmentDir(dir), key))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
