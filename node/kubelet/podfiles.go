package kubelet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/podfile"
	"knarr/node/kubelet/volume"
)

// podFiles makes what containers of a pod get mounted besides whole volumes.
type podFiles struct {
	volumes       *volume.Manager
	clusterDomain string
}

// SubPath makes a part of a volume available, by a path that its containers
// cannot change.
func (f podFiles) SubPath(ctx context.Context, pod *corev1.Pod, volume, container string, index int, root, path string) (string, error) {
	return f.volumes.SubPath(ctx, string(pod.UID), volume, container, index, root, path)
}

// messageDir is where the termination messages of a container are.
func (f podFiles) messageDir(uid, container string) string {
	return filepath.Join(f.volumes.PodDir(uid), "containers", container)
}

// MessageFile makes the file that a container writes its termination message to.
func (f podFiles) MessageFile(pod *corev1.Pod, container string) (string, error) {
	dir := f.messageDir(string(pod.UID), container)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	name := fmt.Sprintf("%08x", rand.Uint32())
	return filepath.Join(dir, name), podfile.Write(dir, name, nil, 0o666)
}

// maxHosts bounds what is read of the node's own hosts file.
const maxHosts = 16 << 20

// HostsFile writes the hosts file of a pod.
func (f podFiles) HostsFile(pod *corev1.Pod, ips []string) (string, error) {
	dir := f.volumes.PodDir(string(pod.UID))
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	var node []byte
	if pod.Spec.HostNetwork {
		var err error
		if node, err = podfile.ReadHost("/etc/hosts", maxHosts); err != nil && !os.IsNotExist(err) {
			return "", err
		}
	}
	text, err := criconfig.HostsFile(pod, ips, f.clusterDomain, node)
	if err != nil {
		return "", err
	}
	const name = "etc-hosts"
	if podfile.Same(dir, name, text) {
		return filepath.Join(dir, name), nil
	}
	// In place: containers that run already have the file mounted.
	return filepath.Join(dir, name), podfile.Write(dir, name, text, 0o644)
}

// errPodDirs is what keeps a pod from having directories.
var errPodDirs = errors.New("error making pod data directories")

func podDirsError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errPodDirs, err)
}

// makePodDirs makes the directories of a pod.
func makePodDirs(dir string) error {
	for _, d := range []string{dir, filepath.Join(dir, "volumes"), filepath.Join(dir, "plugins")} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return err
		}
	}
	return nil
}
