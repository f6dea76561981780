package podtest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
	"knarr/internal/run"
)

// Hang mounts a file system at dir whose server never answers.
func Hang(t *testing.T, dir string) {
	t.Helper()
	need.Root(t)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Mount("hung", dir, "fuse", unix.MS_NODEV|unix.MS_NOSUID, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd))
	}
	if err != nil {
		need.Skip(t, "needs FUSE: a kernel with it and /dev/fuse: ", err)
	}
	t.Cleanup(func() {
		_ = unix.Close(fd) // ends the file system, and who waits for it
		_ = unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	})
}

// Within fails the test if f does not return within 20 s, or returns an error.
func Within(t *testing.T, what string, f func() error) {
	t.Helper()
	ended := make(chan error, 1)
	run.Go("test: "+what, func() { ended <- f() })
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-limit.C:
		t.Fatalf("%s waits for a mount that hangs", what)
	}
}
