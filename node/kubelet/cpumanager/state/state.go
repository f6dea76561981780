// Package state is the form in which upstream's kubelet keeps which container has which
// CPUs, so that a node may change from one to the other. It reads and writes one file.
package state

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"strings"

	"k8s.io/utils/dump"

	"knarr/node/kubelet/statefile"
)

// Name is the file's in the kubelet's root directory.
const Name = "cpu_manager_state"

// CPUManagerCheckpoint has upstream's name, because the checksum is of a text with it.
type CPUManagerCheckpoint struct {
	PolicyName    string                       `json:"policyName"`
	DefaultCPUSet string                       `json:"defaultCpuSet"`
	Entries       map[string]map[string]string `json:"entries,omitempty"`
	Checksum      Checksum                     `json:"checksum"`
}

// Checksum is of the text of all the rest.
type Checksum uint64

func checksum(c CPUManagerCheckpoint) Checksum {
	c.Checksum = 0
	h := fnv.New32a()
	fmt.Fprintf(h, "%v", text(&c))
	return Checksum(h.Sum32())
}

// text is how upstream writes a checkpoint down for its checksum.
func text(c *CPUManagerCheckpoint) string {
	return strings.Replace(dump.ForHash(c), "(state.Checksum)", "(checksum.Checksum)", 1)
}

// Write replaces the file.
func Write(path string, c CPUManagerCheckpoint) error {
	c.Checksum = checksum(c)
	return statefile.Write(path, c, true)
}

// Read reads the file; ok is false if there is none.
func Read(path string) (c CPUManagerCheckpoint, ok bool, err error) {
	err = statefile.Read(path, &c)
	if errors.Is(err, fs.ErrNotExist) {
		return c, false, nil
	}
	if err != nil {
		return c, false, err
	}
	if c.Checksum != 0 && c.Checksum != checksum(c) {
		return c, false, errors.New("checkpoint is corrupted")
	}
	return c, true, nil
}

// Remove removes the file.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
