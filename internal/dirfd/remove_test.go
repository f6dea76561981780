package dirfd

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
)

// TestMixProjects: a directory does not hand its project down any more, and keeps
// its other flags.
func TestMixProjects(t *testing.T) {
	need.Root(t)
	const noDump, inherits = 0x40, 0x20000000
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	fd := int(dir.Fd())
	was, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, was|noDump|inherits)
	}
	if err != nil {
		t.Skip("the file system of the temporary directory has no projects: ", err)
	}
	if err := mixProjects(fd); err != nil {
		t.Fatal(err)
	}
	if now, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS); err != nil || now != was|noDump {
		t.Errorf("flags %x, were %x; %v", now, was, err)
	}
}
