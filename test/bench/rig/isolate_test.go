package rig

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
)

// What upstream's programs write to the host's directories stays within the
// rig's own mounts.
func TestHiddenDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes mounts: run it as root")
	}
	for _, dir := range []string{"/run/netns", "/var/lib/cni"} {
		if !slices.Contains(hidden, dir) {
			t.Errorf("%s is not hidden", dir)
		}
	}
	dir := filepath.Join(t.TempDir(), "netns")
	if made := makeAll([]string{dir, dir}); len(made) != 1 || made[0] != dir {
		t.Fatalf("made %v", made)
	}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the namespace ends with the thread
		failed <- func() error {
			if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
				return err
			}
			if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
				return err
			}
			if err := hide([]string{dir}); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "cni-1"), nil, 0o600)
		}()
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("the host has %v, %v", left, err)
	}
}

// TestMountPoint: a directory that another process has something mounted at is not
// taken for one of ours alone.
func TestMountPoint(t *testing.T) {
	proc := t.TempDir()
	if err := os.Mkdir(filepath.Join(proc, "7"), 0o755); err != nil {
		t.Fatal(err)
	}
	table := "30 1 254:0 / / rw - ext4 /dev/vda rw\n31 30 254:0 /a/kubelet /var/lib/kubelet rw - ext4 /dev/vda rw\n"
	if err := os.WriteFile(filepath.Join(proc, "7", "mountinfo"), []byte(table), 0o644); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{"/var/lib/kubelet": true, "/var/lib/kube": false, "/run/netns": false} {
		if got := mountPoint(proc, dir); got != want {
			t.Errorf("%s: %v", dir, got)
		}
	}
}
