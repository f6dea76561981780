package volume

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

func makeDir(path string, mode fs.FileMode) error {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return nil
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	return os.Chmod(path, mode) // past the umask
}

func emptyDir(pod *corev1.Pod, s *corev1.EmptyDirVolumeSource, path string) error {
	// Made once: a pod may have changed the mode of its own directory since.
	if _, err := os.Lstat(path); err == nil && (s.Medium == corev1.StorageMediumDefault || mounted(path)) {
		return nil
	}
	switch {
	case s.Medium == corev1.StorageMediumMemory:
		size := int64(0)
		if l := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{}); allLimited(pod) {
			size = l.Memory().Value()
		}
		if s.SizeLimit != nil && s.SizeLimit.Value() > 0 && (size == 0 || s.SizeLimit.Value() < size) {
			size = s.SizeLimit.Value()
		}
		if err := mountTmpfs(path, size, 0o777); err != nil {
			return err
		}
	case strings.HasPrefix(string(s.Medium), string(corev1.StorageMediumHugePages)):
		if err := os.MkdirAll(path, 0o750); err != nil {
			return err
		}
		opts := ""
		if rest := strings.TrimPrefix(string(s.Medium), string(corev1.StorageMediumHugePages)+"-"); rest != string(s.Medium) {
			opts = "pagesize=" + strings.TrimSuffix(rest, "i")
		}
		if err := unix.Mount("nodev", path, "hugetlbfs", 0, opts); err != nil {
			return fmt.Errorf("mount hugetlbfs: %w", err)
		}
		if err := os.Chmod(path, 0o777); err != nil {
			return err
		}
	default:
		if err := makeDir(path, 0o777); err != nil {
			return err
		}
	}
	return Own(pod, path)
}

func allLimited(pod *corev1.Pod) bool {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Resources.Limits.Memory().IsZero() {
			return false
		}
	}
	return true
}

// Own gives a writable volume to the pod's group.
func Own(pod *corev1.Pod, path string) error {
	g := fsGroup(pod)
	if g == nil {
		return nil
	}
	if p := pod.Spec.SecurityContext.FSGroupChangePolicy; p != nil && *p == corev1.FSGroupChangeOnRootMismatch {
		if st, err := os.Stat(path); err == nil {
			sys, ok := st.Sys().(*syscall.Stat_t)
			if ok && int64(sys.Gid) == *g && st.Mode()&fs.ModeSetgid != 0 && st.Mode().Perm()&0o660 == 0o660 {
				return nil
			}
		}
	}
	return filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type()&fs.ModeSymlink != 0 {
			return os.Lchown(p, -1, int(*g))
		}
		if err := os.Lchown(p, -1, int(*g)); err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		mode := st.Mode() | 0o660
		if d.IsDir() {
			mode |= 0o110 | fs.ModeSetgid
		}
		return os.Chmod(p, mode)
	})
}

func mountTmpfs(path string, size int64, mode fs.FileMode) error {
	if mounted(path) {
		return nil
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	opts := ""
	if size > 0 {
		opts = fmt.Sprintf("size=%d", size)
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, opts); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	return os.Chmod(path, mode)
}

// mounted says whether path is a mount point by comparing it with its parent.
func mounted(path string) bool {
	var a, b unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &a) != nil ||
		unix.Statx(unix.AT_FDCWD, filepath.Dir(path), unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &b) != nil {
		return false
	}
	return a.Mnt_id != b.Mnt_id
}

func bindOnce(from, to string, readOnly bool) error {
	if mounted(to) {
		return nil
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", from, err)
	}
	if readOnly {
		if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("bind %s read-only: %w", from, err)
		}
	}
	return nil
}

// mountProgram runs mount(8) for file systems that need their own helper.
func mountProgram(fstype, source, target string, options []string) error {
	if mounted(target) {
		return nil
	}
	args := []string{"-t", fstype}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	if out, err := exec.Command("mount", append(args, source, target)...).CombinedOutput(); err != nil {
		return fmt.Errorf("mount %s: %w: %s", source, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// unmountBelow unmounts everything mounted below dir, deepest first. Without
// an error nothing is mounted there any more.
func unmountBelow(dir string) error {
	points, err := mountsBelow(dir)
	if err != nil || len(points) == 0 {
		return err
	}
	slices.Reverse(points) // later mounts lie over earlier ones
	for _, p := range points {
		err := unix.Unmount(p, unix.UMOUNT_NOFOLLOW)
		if err == unix.EBUSY {
			err = unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
		if err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return fmt.Errorf("unmount %s: %w", p, err)
		}
	}
	points, err = mountsBelow(dir)
	if err == nil && len(points) > 0 {
		err = fmt.Errorf("%s is still mounted", points[0])
	}
	return err
}

func mountsBelow(dir string) (points []string, err error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if p := unescape(f[4]); strings.HasPrefix(p, real+"/") {
			points = append(points, p)
		}
	}
	return points, nil
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func hostPath(s *corev1.HostPathVolumeSource) error {
	if s.Type == nil || *s.Type == corev1.HostPathUnset {
		return nil
	}
	st, err := os.Stat(s.Path)
	missing := os.IsNotExist(err)
	switch *s.Type {
	case corev1.HostPathDirectoryOrCreate:
		if missing {
			return makeDir(s.Path, 0o755)
		}
		return is(err == nil && st.IsDir(), s.Path, "a directory")
	case corev1.HostPathDirectory:
		return is(err == nil && st.IsDir(), s.Path, "a directory")
	case corev1.HostPathFileOrCreate:
		if missing {
			f, err := os.OpenFile(s.Path, os.O_CREATE|os.O_EXCL, 0o644)
			if err != nil {
				return err
			}
			return f.Close()
		}
		return is(err == nil && !st.IsDir(), s.Path, "a file")
	case corev1.HostPathFile:
		return is(err == nil && st.Mode().IsRegular(), s.Path, "a file")
	case corev1.HostPathSocket:
		return is(err == nil && st.Mode()&fs.ModeSocket != 0, s.Path, "a socket file")
	case corev1.HostPathCharDev:
		return is(err == nil && st.Mode()&fs.ModeCharDevice != 0, s.Path, "a character device")
	case corev1.HostPathBlockDev:
		return is(err == nil && st.Mode()&fs.ModeDevice != 0 && st.Mode()&fs.ModeCharDevice == 0, s.Path, "a block device")
	}
	return fmt.Errorf("%s is an invalid volume type", *s.Type)
}

func is(ok bool, path, what string) error {
	if ok {
		return nil
	}
	return fmt.Errorf("hostPath type check failed: %s is not %s", path, what)
}
