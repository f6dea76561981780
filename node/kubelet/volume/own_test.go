package volume

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/need"
	"knarr/node/kubelet/podtest"
)

func groupOf(t *testing.T, path string) (gid uint32, mode os.FileMode) {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t).Gid, st.Mode()
}

// TestLocalVolumeIsOwnedOnce: the files of a local volume are given to the
// pod's group when it is set up, and what the pod makes of them after is left.
func TestLocalVolumeIsOwnedOnce(t *testing.T) {
	need.Root(t)
	dir, disk, outside := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "outside")
	file := filepath.Join(disk, "sub", "file")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{file, outside} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(disk, "link")); err != nil {
		t.Fatal(err)
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: disk}
	m := New(Config{PodsDir: dir, Claim: func(context.Context, *corev1.Pod, string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, error) {
		return pv, &corev1.PersistentVolumeClaim{}, nil
	}})
	podOf := func(uid types.UID, group int64) *corev1.Pod {
		p := podWith(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}})
		p.UID, p.Spec.SecurityContext = uid, &corev1.PodSecurityContext{FSGroup: &group}
		return p
	}
	first := podOf("a", 2000)
	defer func() {
		if err := m.Unmount(context.Background(), string(first.UID)); err != nil {
			t.Error(err)
		}
	}()
	mount := func(p *corev1.Pod) {
		t.Helper()
		if _, _, err := m.Mount(t.Context(), podtest.Use(p), nil); err != nil {
			t.Fatal(err)
		}
	}
	mount(first)
	if gid, mode := groupOf(t, file); gid != 2000 || mode != 0o660 {
		t.Fatalf("set up: group %d, mode %v", gid, mode)
	}
	if gid, mode := groupOf(t, disk); gid != 2000 || mode&os.ModeSetgid == 0 {
		t.Fatalf("the root: group %d, mode %v", gid, mode)
	}
	if gid, mode := groupOf(t, outside); gid != 0 || mode != 0o600 {
		t.Errorf("what a link leads to: group %d, mode %v", gid, mode)
	}
	if err := os.Chown(file, 0, 3000); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	mount(first) // as a refresh of a token does
	m = New(m.Config)
	mount(first) // as a restart of the kubelet does
	second := podOf("b", 4000)
	defer func() {
		if err := m.Unmount(context.Background(), string(second.UID)); err != nil {
			t.Error(err)
		}
	}()
	mount(second) // beside one that has it
	if gid, mode := groupOf(t, file); gid != 3000 || mode != 0o600 {
		t.Errorf("after a refresh the pod's own file has group %d and mode %v", gid, mode)
	}
}

// TestOnRootMismatch: a volume whose root is the group's already is left alone
// if the pod says so.
func TestOnRootMismatch(t *testing.T) {
	need.Root(t)
	disk := t.TempDir()
	file := filepath.Join(disk, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	group, policy := int64(2000), corev1.FSGroupChangeOnRootMismatch
	p := podWith(corev1.VolumeSource{})
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group, FSGroupChangePolicy: &policy}
	for _, c := range []struct {
		mode os.FileMode
		gid  uint32
	}{{0o770 | os.ModeSetgid, 0}, {0o660 | os.ModeSetgid, 2000}, {0o770, 2000}} { // the last two lack a bit
		for _, err := range []error{os.Chown(disk, 0, int(group)), os.Chmod(disk, c.mode), os.Chown(file, 0, 0), Own(t.Context(), p, disk, new(atomic.Int64))} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if gid, _ := groupOf(t, file); gid != c.gid {
			t.Errorf("root with mode %v: the file has group %d, want %d", c.mode, gid, c.gid)
		}
	}
}

// TestOwningIsReported: who waits for a volume whose many files get the pod's group is told so,
// as upstream tells, and not any more when that has ended.
func TestOwningIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := make(chan string, 10)
		m := New(Config{Event: func(_ *corev1.Pod, kind, reason, message string) {
			events <- kind + " " + reason + " " + message
		}})
		p := podtest.Pod("p", "c")
		p.UID = "u-1"
		var files atomic.Int64
		stop := m.reportOwning(p, "/var/lib/kubelet/pods/u-1/volumes/x/data", &files)
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if len(events) != 0 {
			t.Errorf("too soon: %s", <-events)
		}
		files.Store(7)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		stop()
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(events) != 2 {
			t.Fatalf("%d events", len(events))
		}
		if first, second := <-events, <-events; !strings.HasPrefix(first, "Warning VolumePermissionChangeInProgress Setting volume ownership for u-1/volumes/x/data is taking longer than expected") ||
			second != "Warning VolumePermissionChangeInProgress Setting volume ownership for u-1/volumes/x/data, processed 7 files." {
			t.Errorf("%q, %q", first, second)
		}
	})
}
