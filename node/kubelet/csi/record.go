package csi

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"knarr/node/kubelet/podfile"
)

// A record is what is noted beside a volume, under upstream's keys.
type record struct {
	SpecVolID  string `json:"specVolID,omitempty"`
	Handle     string `json:"volumeHandle"`
	Driver     string `json:"driverName"`
	Node       string `json:"nodeName,omitempty"`
	Attachment string `json:"attachmentID,omitempty"`
	Lifecycle  string `json:"volumeLifecycleMode,omitempty"`
	// Attach is notAttached if no controller attaches the volume. Upstream has no
	// such key, and reads over it.
	Attach string `json:"attachRequired,omitempty"`
	// Migrated says that the driver has taken over from a plugin within Kubernetes.
	// Upstream has no such key either.
	Migrated bool `json:"migrated,omitempty"`
}

const notAttached = "false"

const recordFile = "vol_data.json"

func note(dir string, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, recordFile+".")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, recordFile))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// maxRecord bounds what is read of a record.
const maxRecord = 1 << 20

func noted(dir string) (r record, err error) {
	b, err := podfile.Read(dir, recordFile, maxRecord)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(b, &r)
}
