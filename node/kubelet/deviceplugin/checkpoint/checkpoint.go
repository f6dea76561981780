// Package checkpoint is the form in which upstream's kubelet keeps which container has
// which devices, so that a node may change from one to the other. It reads and writes
// one file.
package checkpoint

import (
	"fmt"
	"hash/fnv"
	"path/filepath"

	"k8s.io/utils/dump"

	"knarr/node/kubelet/statefile"
)

// Name is the file's in the directory of device plugins.
const Name = "kubelet_internal_checkpoint"

// DevicesPerNUMA are devices by NUMA node, -1 for those of none.
type DevicesPerNUMA map[int64][]string

// A PodDevicesEntry says which devices of a resource a container has.
type PodDevicesEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     DevicesPerNUMA
	// AllocResp is the plugin's answer.
	AllocResp []byte
}

// checkpointData has upstream's name, because the checksum is of a text with it.
type checkpointData struct {
	PodDeviceEntries  []PodDevicesEntry
	RegisteredDevices map[string][]string
}

// file is the content of the file.
type file struct {
	Data     checkpointData
	Checksum uint64
}

func checksum(d checkpointData) uint64 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%v", dump.ForHash(d))
	return uint64(h.Sum32())
}

// Write replaces the file.
func Write(dir string, entries []PodDevicesEntry, registered map[string][]string) error {
	f := file{Data: checkpointData{entries, registered}}
	f.Checksum = checksum(f.Data)
	return statefile.Write(filepath.Join(dir, Name), f, true)
}

// Read reads the file.
func Read(dir string) ([]PodDevicesEntry, map[string][]string, error) {
	var f file
	if err := statefile.Read(filepath.Join(dir, Name), &f); err != nil {
		return nil, nil, err
	}
	if f.Checksum != checksum(f.Data) {
		return nil, nil, fmt.Errorf("checkpoint is corrupted: %s: the checksum is %d and not %d", filepath.Join(dir, Name), checksum(f.Data), f.Checksum)
	}
	return f.Data.PodDeviceEntries, f.Data.RegisteredDevices, nil
}
