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
