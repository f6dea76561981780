package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/fscall"
	"knarr/node/kubelet/podfile"
	"knarr/node/kubelet/podspec"
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

const emptyDirKind = "kubernetes.io~empty-dir"

func (m *Manager) emptyDir(ctx context.Context, pod *corev1.Pod, name string, s *corev1.EmptyDirVolumeSource, path string) error {
	if s.Medium != corev1.StorageMediumDefault {
		return m.setUp(ctx, pod, Mounted{Kind: emptyDirKind}, name, path, func(unowned func() error) error {
			if err := unowned(); err != nil {
				return err
			}
			return m.mountEmptyDir(pod, s, path)
		})
	}
	// Made once: a pod may have changed the mode of its own directory since.
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	making := path + ".making" // no name of a volume has a dot
	if err := podfile.RemoveAll(ctx, making); err != nil {
		return err
	}
	if err := makeDir(making, 0o777); err != nil {
		return err
	}
	if err := m.joinProject(pod, making); err != nil && m.news.IsNew("projects of emptyDirs", err.Error()) {
		slog.Warn("a volume gets no project of its own, and is measured file by file", "pod", podspec.Format(pod), "volume", name, "err", err)
	}
	if err := m.own(ctx, pod, Mounted{Kind: emptyDirKind}, making); err != nil {
		return err
	}
	return os.Rename(making, path)
}

// mounted says whether path is a mount point. It asks the directory that path
// is in, never what is mounted.
func mounted(path string) bool {
	is, err := podfile.IsMount(path)
	return err == nil && is
}

func bind(from, to string, readOnly bool) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", from, err)
	}
	if readOnly {
		if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			_ = unix.Unmount(to, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // never writable instead
			return fmt.Errorf("bind %s read-only: %w", from, err)
		}
	}
	return nil
}

// mountTime bounds what mount(8) takes.
const mountTime = 2 * time.Minute

// mountProgram runs mount(8) for file systems that need their own helper.
func (m *Manager) mountProgram(ctx context.Context, fstype, source, target string, options []string) error {
	if mounted(target) {
		return nil
	}
	if err := makeDir(target, 0o750); err != nil {
		return err
	}
	args := []string{"-t", fstype}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	return m.calls.Do(ctx, source, mountTime, func() error {
		ctx, cancel := context.WithTimeout(ctx, mountTime)
		defer cancel()
		cmd := exec.CommandContext(ctx, "mount", append(args, "--", source, target)...)
		cmd.WaitDelay = time.Second
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("mount %s: %w: %s", source, err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

// inUse says whether a pod of this node has the volume mounted.
func (m *Manager) inUse(kind, name string) bool {
	uids, _ := m.Pods()
	for _, uid := range uids {
		if mounted(filepath.Join(m.PodDir(uid), "volumes", kind, name)) {
			return true
		}
	}
	return false
}

// unmountBelow unmounts everything mounted below dir, deepest first. Without
// an error nothing is mounted there any more.
func (m *Manager) unmountBelow(ctx context.Context, dir string) error {
	points, err := mountsBelow(dir)
	if err != nil || len(points) == 0 {
		return err
	}
	slices.Reverse(points) // later mounts lie over earlier ones
	for _, p := range points {
		hung := &fscall.Error{}
		err := m.calls.Do(ctx, p, m.AnswerTime, func() error { return unmount(p) })
		if errors.As(err, &hung) {
			return m.detachBelow(ctx, dir)
		}
		if err != nil {
			return err
		}
	}
	return nothingBelow(dir)
}

func unmount(path string) error {
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	if err == unix.EBUSY {
		err = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}

// detachBelow takes what does not answer out of the tree, with all that is
// mounted inside: the outermost first, for a path through it cannot be
// followed. What still does not answer has its requests called off.
func (m *Manager) detachBelow(ctx context.Context, dir string) error {
	for _, flags := range []int{unix.MNT_DETACH, unix.MNT_DETACH | unix.MNT_FORCE} {
		points, err := mountsBelow(dir)
		if err != nil {
			return err
		}
		for i, p := range points {
			if slices.ContainsFunc(points[:i], func(o string) bool { return o == p || strings.HasPrefix(p, o+"/") }) {
				continue // went with the outer one
			}
			err := m.calls.Do(ctx, fmt.Sprint(p, " detached ", flags), m.AnswerTime, func() error { return unix.Unmount(p, flags|unix.UMOUNT_NOFOLLOW) })
			if err != nil && flags&unix.MNT_FORCE != 0 {
				return fmt.Errorf("unmount %s: %w", p, err)
			}
		}
		if nothingBelow(dir) == nil {
			return nil
		}
	}
	return nothingBelow(dir)
}

func nothingBelow(dir string) error {
	points, err := mountsBelow(dir)
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

func (m *Manager) hostPath(ctx context.Context, s *corev1.HostPathVolumeSource) error {
	if s.Type == nil || *s.Type == corev1.HostPathUnset {
		return nil
	}
	return m.calls.Do(ctx, s.Path, m.AnswerTime, func() error { return checkHostPath(s) })
}

func checkHostPath(s *corev1.HostPathVolumeSource) error {
	st, err := os.Stat(s.Path)
	missing := os.IsNotExist(err)
	switch *s.Type {
	case corev1.HostPathUnset:
		return nil
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
