package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"knarr/internal/run"
	"knarr/node/kubelet/podfile"
)

// unownedFile notes that a volume is still to be given to its pod's group. It
// is there from before the volume is mounted until that is done, so that
// neither a failure nor a restart leaves a volume to nobody, and no later look
// at the volume changes what the pod has made of its files.
const unownedFile = "unowned"

// setUp mounts a volume at target with mount, unless something is mounted
// there, and gives it to the pod's group if mount says that this is due.
func (m *Manager) setUp(ctx context.Context, pod *corev1.Pod, of Mounted, name, target string, mount func(unowned func() error) error) error {
	note := filepath.Join(m.PodDir(string(pod.UID)), "plugins", of.Kind, name, unownedFile)
	if !mounted(target) {
		if err := os.Remove(note); err != nil && !os.IsNotExist(err) {
			return err
		}
		if err := mount(func() error { return writeNote(pod, note) }); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(note); err != nil {
		if os.IsNotExist(err) {
			return nil
		}
		return err
	}
	// However long it takes: only the pod's end calls it off.
	if err := m.calls.Do(ctx, target, 0, func() error { return m.own(ctx, pod, of, target) }); err != nil {
		return fmt.Errorf("applyFSGroup failed for vol %s: %w", name, err)
	}
	return os.Remove(note)
}

func writeNote(pod *corev1.Pod, path string) error {
	if fsGroup(pod) == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// own gives a volume to the pod's group, and tells of it if there was something to do.
func (m *Manager) own(ctx context.Context, pod *corev1.Pod, of Mounted, path string) error {
	if owned(pod, path) {
		return nil
	}
	began := time.Now()
	var files atomic.Int64
	defer m.reportOwning(pod, path, &files)()
	err := Own(ctx, pod, path, &files)
	m.Did(Operation{Name: OpOwn, Plugin: of.Plugin(), Migrated: of.Migrated, Took: time.Since(began), Err: err})
	return err
}

// It is said after firstOwning, then each moreOwning, that a volume is still being given to
// its pod's group: upstream's.
const (
	firstOwning = 30 * time.Second
	moreOwning  = time.Minute
)

// reportOwning has it said how many files were given to a pod's group, until stop.
func (m *Manager) reportOwning(pod *corev1.Pod, path string, files *atomic.Int64) (stop func()) {
	const what = "kubelet: files that a pod's group gets"
	ctx, cancel := context.WithCancel(context.Background())
	name := path
	if i := strings.Index(path, string(pod.UID)); i >= 0 {
		name = path[i:]
	}
	event := func(format string, args ...any) {
		m.Event(pod, corev1.EventTypeWarning, "VolumePermissionChangeInProgress", fmt.Sprintf(format, args...))
	}
	timer := run.AfterFunc(what, firstOwning, func() {
		if ctx.Err() != nil {
			return
		}
		event("Setting volume ownership for %s is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods", name)
		tick := time.NewTicker(moreOwning)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				event("Setting volume ownership for %s, processed %d files.", name, files.Load())
			}
		}
	})
	return func() {
		cancel()
		timer.Stop()
	}
}

// added is what the group may do with files of its volumes.
const added = 0o660

// owned says that a volume is not to be given to the pod's group: there is none, or the
// volume's root is the group's and the pod wants no more to be looked at.
func owned(pod *corev1.Pod, path string) bool {
	g := fsGroup(pod)
	if g == nil {
		return true
	}
	p := pod.Spec.SecurityContext.FSGroupChangePolicy
	if p == nil || *p != corev1.FSGroupChangeOnRootMismatch {
		return false
	}
	var st unix.Stat_t
	const want = added | 0o110 | unix.S_ISGID
	return unix.Stat(path, &st) == nil && int64(st.Gid) == *g && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&want == want
}

// Own gives a volume to the pod's group: its root last, by which a later Own
// says that all of it is owned. It counts the files.
func Own(ctx context.Context, pod *corev1.Pod, path string, files *atomic.Int64) error {
	if owned(pod, path) {
		return nil
	}
	g := fsGroup(pod)
	root, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	first := true
	err = podfile.Walk(ctx, path, func(fd int, st *unix.Stat_t) error {
		files.Add(1)
		if first {
			first = false
			return nil
		}
		return ownFile(fd, st, *g, added)
	})
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return err
	}
	return ownFile(int(root.Fd()), &st, *g, added)
}

// ownFile gives one file to the group by a descriptor of it: whatever a
// container puts in its place meanwhile is not touched.
func ownFile(fd int, st *unix.Stat_t, group int64, add uint32) error {
	if err := unix.Fchownat(fd, "", -1, int(group), unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		add |= 0o110 | unix.S_ISGID
	}
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), st.Mode&0o7777|add)
}

// ownDir gives the directory of a volume made of API objects to the group.
func ownDir(path string, group int64) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	if int64(st.Gid) == group && st.Mode&unix.S_ISGID != 0 {
		return nil
	}
	if err := os.Lchown(path, -1, int(group)); err != nil {
		return err
	}
	return unix.Chmod(path, st.Mode&0o7777|unix.S_ISGID)
}
