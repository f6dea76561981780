package volume

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// nfs mounts a directory of an NFS server, by the host's own helper.
func (m *Manager) nfs(ctx context.Context, pod *corev1.Pod, name string, s *corev1.NFSVolumeSource, readOnly bool, options []string) (Mounted, error) {
	const kind = "kubernetes.io~nfs"
	got := Mounted{Path: m.dir(pod, kind, name), ReadOnly: readOnly || s.ReadOnly, Kind: kind}
	if mounted(got.Path) {
		return got, nil
	}
	if _, err := helper("mount.nfs", "nfs-common (Debian, Ubuntu) or nfs-utils (others)"); err != nil {
		return got, err
	}
	if got.ReadOnly && !slices.Contains(options, "ro") {
		options = append(slices.Clone(options), "ro")
	}
	return got, m.mountProgram(ctx, "nfs", nfsSource(s), got.Path, options)
}

// nfsSource is a directory of a server as mount(8) wants it. Pure.
func nfsSource(s *corev1.NFSVolumeSource) string {
	server := s.Server
	if ip, err := netip.ParseAddr(server); err == nil && ip.Is6() {
		server = "[" + server + "]"
	}
	return server + ":" + s.Path
}

// helper finds a program of the host that no other can stand in for.
func helper(program, from string) (path string, err error) {
	for _, dir := range []string{"", "/sbin", "/usr/sbin", "/usr/local/sbin"} {
		if path, err = exec.LookPath(filepath.Join(dir, program)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("this node has no %s: install %s on it", program, from)
}
