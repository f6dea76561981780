package criconfig

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/expansion"
	"knarr/node/kubelet/volume"
)

// A Files makes the files and directories of the node that a container
// gets mounted. Each answers with the path on the node.
type Files interface {
	// SubPath prepares a part of a volume: the index is that of the mount in the
	// container's spec, root is where the volume is.
	SubPath(ctx context.Context, pod *corev1.Pod, volume, container string, index int, root, path string) (string, error)
	// HostsFile writes the hosts file of a pod with these addresses.
	HostsFile(pod *corev1.Pod, ips []string) (string, error)
	// MessageFile makes the file for a container's termination message.
	MessageFile(pod *corev1.Pod, container string) (string, error)
}

// maxSubPath is the longest path that the kernel takes.
const maxSubPath = 4096

// containerMounts are the volumes, devices and files of a container.
func containerMounts(ctx context.Context, n Node, in Inputs, lookup func(string) (string, bool)) (mounts []*cri.Mount, devices []*cri.Device, err error) {
	pod, c := in.Pod, in.Spec
	hosts := false
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		v, ok := in.Volumes[m.Name]
		if !ok {
			return nil, nil, fmt.Errorf("cannot find volume %q to mount into container %q", m.Name, c.Name)
		}
		hosts = hosts || filepath.Clean(m.MountPath) == "/etc/hosts"
		out, err := volumeMount(ctx, in, i, v, lookup)
		if err != nil {
			return nil, nil, err
		}
		out.SelinuxRelabel = n.SELinux && relabelled(v)
		mounts = append(mounts, out)
	}
	if devices, err = volumeDevices(in); err != nil {
		return nil, nil, err
	}
	if !hosts {
		path, err := in.Files.HostsFile(pod, in.IPs)
		if err != nil {
			return nil, nil, err
		}
		mounts = append(mounts, &cri.Mount{HostPath: path, ContainerPath: "/etc/hosts", SelinuxRelabel: n.SELinux})
	}
	if c.TerminationMessagePath != "" {
		path, err := in.Files.MessageFile(pod, c.Name)
		if err != nil {
			return nil, nil, err
		}
		mounts = append(mounts, &cri.Mount{HostPath: path, ContainerPath: c.TerminationMessagePath, SelinuxRelabel: n.SELinux})
	}
	return mounts, devices, nil
}

// relabelled says whether the files of a volume get the label of the containers that have
// it: those that the kubelet makes for one pod, and disks that its pods may write to. What is
// the node's own, or another machine's, keeps its labels.
func relabelled(v volume.Mounted) bool {
	switch v.Kind {
	case "kubernetes.io~empty-dir", "kubernetes.io~configmap", "kubernetes.io~secret", "kubernetes.io~downward-api", "kubernetes.io~projected":
		return true
	case "kubernetes.io~csi", "kubernetes.io~local-volume", "kubernetes.io~iscsi":
		return !v.ReadOnly
	}
	return false
}

// volumeMount is the mount of one volume, the container's i-th.
func volumeMount(ctx context.Context, in Inputs, i int, v volume.Mounted, lookup func(string) (string, bool)) (*cri.Mount, error) {
	m := &in.Spec.VolumeMounts[i]
	sub, err := subPath(m, lookup)
	if err != nil {
		return nil, err
	}
	out := &cri.Mount{ContainerPath: m.MountPath, Readonly: m.ReadOnly || v.ReadOnly}
	if !strings.HasPrefix(m.MountPath, "/") {
		out.ContainerPath = "/" + m.MountPath
	}
	if v.Image != nil {
		out.Image = &cri.ImageSpec{Image: in.ImageVolumes[m.Name], UserSpecifiedImage: v.Image.Reference}
		out.ImageSubPath = sub
		return out, nil
	}
	out.HostPath = v.Path
	if sub != "" {
		out.HostPath, err = in.Files.SubPath(ctx, in.Pod, m.Name, in.Spec.Name, i, v.Path, sub)
		if err != nil {
			return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", m.Name, in.Spec.Name, err)
		}
	}
	if p := m.MountPropagation; p != nil {
		switch *p {
		case corev1.MountPropagationHostToContainer:
			out.Propagation = cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		case corev1.MountPropagationBidirectional:
			out.Propagation = cri.MountPropagation_PROPAGATION_BIDIRECTIONAL
		}
	}
	if r := m.RecursiveReadOnly; r != nil && m.ReadOnly && (*r == corev1.RecursiveReadOnlyEnabled || *r == corev1.RecursiveReadOnlyIfPossible && in.RecursiveReadOnly) {
		out.RecursiveReadOnly = true
	}
	return out, nil
}

// subPath is the part of the volume that the container gets, with the variables
// of the container in it replaced; "" is all of the volume.
func subPath(m *corev1.VolumeMount, lookup func(string) (string, bool)) (string, error) {
	if m.SubPathExpr == "" {
		return m.SubPath, nil
	}
	missing, most := "", expansion.Budget(maxSubPath)
	sub, err := expansion.Expand(m.SubPathExpr, func(n string) (string, bool) {
		s, ok := lookup(n)
		if !ok {
			missing = n
		}
		return s, ok
	}, &most)
	if err != nil {
		return "", fmt.Errorf("subPathExpr of volumeMount %q is longer than %d bytes", m.Name, maxSubPath)
	}
	if missing != "" {
		return "", fmt.Errorf("missing value for %q", missing)
	}
	return sub, nil
}

// volumeDevices are the block volumes of a container.
func volumeDevices(in Inputs) (devices []*cri.Device, err error) {
	for _, d := range in.Spec.VolumeDevices {
		v, ok := in.Volumes[d.Name]
		if !ok || v.Device == "" {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, in.Spec.Name)
		}
		perm := "mrw"
		if v.ReadOnly {
			perm = "r"
		}
		devices = append(devices, &cri.Device{HostPath: v.Device, ContainerPath: d.DevicePath, Permissions: perm})
	}
	return devices, nil
}
