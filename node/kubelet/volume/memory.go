package volume

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func (m *Manager) mountEmptyDir(pod *corev1.Pod, s *corev1.EmptyDirVolumeSource, path string) error {
	switch {
	case s.Medium == corev1.StorageMediumMemory:
		return m.mountTmpfs(path, m.memorySize(pod, s.SizeLimit), 0o777|fs.ModeSticky)
	case strings.HasPrefix(string(s.Medium), string(corev1.StorageMediumHugePages)):
		size, err := pageSize(pod, s.Medium)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(path, 0o750); err != nil {
			return err
		}
		if err := unix.Mount("nodev", path, "hugetlbfs", 0, "pagesize="+size); err != nil {
			return fmt.Errorf("mount hugetlbfs: %w", err)
		}
		return os.Chmod(path, 0o777)
	}
	return nil
}

// memorySize is the size in bytes of a pod's file system in memory: what the pod can have,
// or less if the volume says so; 0: what the kernel thinks fit.
func (m *Manager) memorySize(pod *corev1.Pod, limit *resource.Quantity) (size int64) {
	if m.PodMemory != nil {
		size = m.PodMemory(pod)
	}
	if limit != nil && limit.Sign() > 0 && (size == 0 || limit.Value() < size) {
		size = limit.Value()
	}
	return size
}

// pageSize is the size of the pages of a volume, in the form of an option of mount: that of
// the medium HugePages-2Mi, or for HugePages the only one that the pod requests.
func pageSize(pod *corev1.Pod, medium corev1.StorageMedium) (string, error) {
	all := []corev1.ResourceList{}
	if pod.Spec.Resources != nil {
		all = append(all, pod.Spec.Resources.Requests)
	}
	for i := range pod.Spec.Containers {
		all = append(all, pod.Spec.Containers[i].Resources.Requests)
	}
	for i := range pod.Spec.InitContainers {
		all = append(all, pod.Spec.InitContainers[i].Resources.Requests)
	}
	want, given := strings.CutPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix))
	found := ""
	for _, list := range all {
		for name := range list {
			size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
			switch {
			case !ok || given && size != want:
			case found != "" && found != size:
				return "", fmt.Errorf("medium: %s can't be used if container requests multiple huge page sizes", medium)
			default:
				found = size
			}
		}
	}
	if found == "" {
		return "", fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages", medium)
	}
	return strings.TrimSuffix(found, "i"), nil
}

func (m *Manager) mountTmpfs(path string, size int64, mode fs.FileMode) error {
	if mounted(path) {
		return nil
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, tmpfsOptions(size, m.NoSwap())); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	return os.Chmod(path, mode)
}

func tmpfsOptions(size int64, noSwap bool) string {
	var o []string
	if size > 0 {
		o = append(o, fmt.Sprintf("size=%d", size))
	}
	if noSwap {
		o = append(o, "noswap")
	}
	return strings.Join(o, ",")
}

// takesNoSwap says whether the kernel keeps a file system in memory from swap, by mounting
// one in dir: kernels before 6.4 do not know how, and user namespaces may not have it.
func takesNoSwap(dir string) bool {
	path, err := os.MkdirTemp(dir, "tmpfs-noswap-test-")
	if err != nil {
		return false
	}
	defer func() { _ = os.Remove(path) }()
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "noswap"); err != nil {
		return false
	}
	_ = unmount(path)
	return true
}
