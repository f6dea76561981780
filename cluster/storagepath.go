package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"knarr/addons/localstorage"
)

// storagePath is the file that names another directory of local volumes than that within
// the data directory, for what takes the node down.
func (l layout) storagePath() string { return filepath.Join(l.dir, "local-storage-path") }

// storage is the directory of local volumes.
func (l layout) storage() string {
	if b, err := os.ReadFile(l.storagePath()); err == nil && len(b) > 0 {
		return strings.TrimSpace(string(b))
	}
	return filepath.Join(l.dir, "storage")
}

// keepStorage notes where local volumes are from now on; "" is within the data directory.
// Volumes are found by their name in it, so that it stays while there are some.
func (l layout) keepStorage(dir string) (string, error) {
	before := l.storage()
	if dir == "" {
		dir = filepath.Join(l.dir, "storage")
	}
	if dir == before {
		return dir, nil
	}
	if has, err := localstorage.HasVolumes(before); err != nil || has {
		return "", errors.Join(fmt.Errorf("--default-local-storage-path: %s: there are volumes in %s; delete their claims, or leave the directory as it is", dir, before), err)
	}
	return dir, os.WriteFile(l.storagePath(), []byte(dir+"\n"), 0o600)
}
