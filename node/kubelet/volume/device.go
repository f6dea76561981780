package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// devices is where a pod's directory has the links to its block devices.
const devices = "volumeDevices/kubernetes.io~csi"

// checkUse checks that containers use a volume as what it is: a block device or a
// file system.
func checkUse(pod *corev1.Pod, name string, block bool) error {
	check := func(c *corev1.Container) error {
		for _, v := range c.VolumeMounts {
			if block && v.Name == name {
				return fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", name)
			}
		}
		for _, v := range c.VolumeDevices {
			if !block && v.Name == name {
				return fmt.Errorf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", name)
			}
		}
		return nil
	}
	var errs []error
	for i := range pod.Spec.InitContainers {
		errs = append(errs, check(&pod.Spec.InitContainers[i]))
	}
	for i := range pod.Spec.Containers {
		errs = append(errs, check(&pod.Spec.Containers[i]))
	}
	return errors.Join(errs...)
}

// localDevice is the block device that a path of the node leads to.
func (m *Manager) localDevice(ctx context.Context, path string) (device string, err error) {
	var found string
	err = m.calls.Do(ctx, path, m.AnswerTime, func() error {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Stat(real, &st); err != nil {
			return fmt.Errorf("stat %s: %w", real, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFBLK {
			return fmt.Errorf("%s is not a block device", path)
		}
		found = real
		return nil
	})
	if err != nil {
		return "", &StepError{"MapVolume.SetUpDevice failed", err}
	}
	return found, nil
}

// linked says whether a pod has the device of a volume.
func (m *Manager) linked(pod *corev1.Pod, name string) bool {
	_, err := os.Lstat(filepath.Join(m.PodDir(string(pod.UID)), devices, name))
	return err == nil
}

// unmapDevices takes all block devices of drivers from a pod.
func (m *Manager) unmapDevices(ctx context.Context, podDir string) error {
	if m.CSI == nil {
		return nil
	}
	links, err := os.ReadDir(filepath.Join(podDir, devices))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	var errs []error
	for _, link := range links {
		if err := m.CSI.UnmapDevice(ctx, filepath.Join(podDir, devices, link.Name())); err != nil {
			errs = append(errs, fmt.Errorf("UnmapVolume.TearDownDevice failed for volume %q: %w", link.Name(), err))
		}
	}
	return errors.Join(errs...)
}
