package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"knarr/internal/programs"
	"knarr/node/containerruntime"
)

// Kubectl gives the path of the embedded kubectl, unpacked, and the
// environment to run it in: pointed at this machine's cluster unless the
// user's own says otherwise.
func Kubectl() (path string, env []string, err error) {
	l := layout{DefaultDataDir}
	dir := l.programs()
	if unix.Access(filepath.Dir(dir), unix.W_OK) != nil {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", nil, fmt.Errorf("unpack kubectl: %w", err)
		}
		dir = filepath.Join(cache, "knarr", "bin")
	}
	if path, err = programs.Unpack(dir, programs.Kubectl); err != nil {
		return "", nil, err
	}
	env = os.Environ()
	if os.Getenv("KUBECONFIG") == "" {
		home, _ := os.UserHomeDir()
		_, err := os.Stat(filepath.Join(home, ".kube", "config"))
		if unix.Access(l.kubeconfig(), unix.R_OK) == nil && (home == "" || err != nil) {
			env = append(env, "KUBECONFIG="+l.kubeconfig())
		}
	}
	return path, env, nil
}

// Images opens the image store of the running node of dir.
func Images(dir string) (*containerruntime.Images, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if b, err := os.ReadFile(layout{dir}.runtimeEndpoint()); err == nil {
		return nil, fmt.Errorf("the images of this node are in another container runtime, %s; use that one's own command, such as ctr -n k8s.io images", strings.TrimSpace(string(b)))
	}
	socket := layout{dir}.runtimeConfig().Socket()
	if _, err := os.Stat(socket); err != nil {
		return nil, fmt.Errorf("no node of --data-dir %s runs on this machine; start one with knarr server", dir)
	}
	return containerruntime.OpenImages(socket, "")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func capable(bit uint) bool {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		var mask uint64
		if n, _ := fmt.Sscanf(line, "CapEff:\t%x", &mask); n == 1 {
			return mask&(1<<bit) != 0
		}
	}
	return false
}
