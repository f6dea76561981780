// Package programs says where the suite's programs are kept, and which of those of
// storage drivers are missing there: this module builds upstream's, the drivers'
// are put there by the user. It reads the user's cache folder and writes nothing.
package programs

import (
	"os"
	"path/filepath"
)

// Version is upstream's, as go.mod has it.
const Version = "v1.36.3"

// Drivers are the programs of storage drivers, and of what stands beside them.
var Drivers = []string{
	"csi-attacher",
	"csi-external-health-monitor-controller",
	"csi-node-driver-registrar",
	"csi-provisioner",
	"csi-resizer",
	"csi-snapshotter",
	"hello-populator",
	"hostpathplugin",
	"livenessprobe",
	"snapshot-controller",
	"volume-data-source-validator",
}

// Cache is the folder of all that is made for the suite: dir, or without one
// knarr's in the user's cache folder.
func Cache(dir string) (string, error) {
	if dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "knarr"), err
}

// Dir is where in the cache the programs are.
func Dir(cache string) string { return filepath.Join(cache, Version) }

// Missing are those of these programs that are not in the folder.
func Missing(dir string, names ...string) (missing []string) {
	for _, n := range names {
		if st, err := os.Stat(filepath.Join(dir, n)); err != nil || !st.Mode().IsRegular() {
			missing = append(missing, n)
		}
	}
	return missing
}
