package volume

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
	"knarr/internal/projectquota"
)

// withProjects are the kernel's for a directory, which test/vm has.
func withProjects(t *testing.T, dir string) Projects {
	t.Helper()
	need.Root(t)
	p, err := NewProjects(dir)
	if err != nil && os.Getenv("KNARR_GUEST") != "" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("needs a file system with project quotas, make vm has one: ", err)
	}
	return p
}

func use(t *testing.T, m *Manager, path string) (bytes, inodes int) {
	t.Helper()
	u, err := m.Usage(withEmptyDirs(new(false)), path)
	if err != nil {
		t.Fatal(err)
	}
	return int(u.Bytes), int(u.Inodes)
}

// TestKernelProjects: the kernel counts what is in a volume, files without a name too, by
// whatever names and for whichever process of the kubelet, until the volume is removed.
func TestKernelProjects(t *testing.T) {
	dir, pod := t.TempDir(), withEmptyDirs(new(false))
	m := New(Config{PodsDir: dir, Projects: withProjects(t, dir)})
	got, _, err := m.Mount(t.Context(), pod, nil)
	if err != nil {
		t.Fatal(err)
	}
	v, w := got["v"].Path, got["w"].Path
	before, _ := use(t, m, v)
	const size = 3 << 20
	hidden, err := os.Create(filepath.Join(v, "hidden"))
	if err != nil {
		t.Fatal(err)
	}
	defer hidden.Close()
	if _, err := hidden.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(hidden.Name()); err != nil {
		t.Fatal(err)
	}
	for i, path := range []string{"a/b", "c"} {
		if err := os.MkdirAll(filepath.Join(v, path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(v, path, "file"), make([]byte, size), 0o644); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := os.Rename(filepath.Join(v, "a", "b"), filepath.Join(v, "c", "b")); err != nil {
		t.Fatal(err)
	}
	m = New(Config{PodsDir: dir, Projects: kernelProjects{}}) // after a restart
	if _, _, err = m.Mount(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	bytes, inodes := use(t, m, v)
	if more := bytes - before; more < 3*size || more > 3*size+64<<10 {
		t.Errorf("3 files of %d bytes are counted as %d", size, more)
	}
	if inodes != 1+1+3+2 { // the volume, hidden, directories, files
		t.Errorf("%d inodes", inodes)
	}
	if bytes, inodes = use(t, m, w); bytes > 64<<10 || inodes != 1 {
		t.Errorf("the other volume: %d bytes, %d inodes", bytes, inodes)
	}
	if err := os.Link(filepath.Join(v, "c", "file"), filepath.Join(w, "file")); !errors.Is(err, unix.EXDEV) {
		t.Errorf("a file of two volumes: %v", err)
	}
	project := projectOf(t, v)
	pod.Spec.HostUsers = nil
	if _, err := m.Usage(pod, v); !errors.Is(err, ErrNoProject) {
		t.Errorf("with the node's users: %v", err)
	}
	if err := hidden.Close(); err != nil {
		t.Error(err)
	}
	if err := m.Unmount(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	root, err := openDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	taken, err := true, error(nil)
	for end := time.Now().Add(time.Minute); taken && err == nil && time.Now().Before(end); {
		var st unix.Statfs_t
		_ = unix.Statfs(dir, &st) // has XFS go on with inodes that are to be freed
		taken, err = projectquota.Taken(root, project)
	}
	if taken || err != nil {
		t.Errorf("the project of a volume that is removed is taken: %v, %v", taken, err)
	}
}

func projectOf(t *testing.T, path string) uint32 {
	t.Helper()
	d, err := openDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p, err := projectquota.Of(d)
	if err != nil || !p.Passes || !projectquota.EmptyDirs.Has(p.ID) {
		t.Fatalf("%+v, %v", p, err)
	}
	return p.ID
}

// inVolume names the volume for the process in a user namespace.
const inVolume = "KNARR_TEST_VOLUME"

// TestConfinedProjects: a process of a user namespace, root of it and owner of the volume,
// makes no file there that is not of the volume's project.
func TestConfinedProjects(t *testing.T) {
	if path := os.Getenv(inVolume); path != "" {
		leaveProject(t, path)
		return
	}
	dir, pod := t.TempDir(), withEmptyDirs(new(false))
	m := New(Config{PodsDir: dir, Projects: withProjects(t, dir)})
	got, _, err := m.Mount(t.Context(), pod, nil)
	if err != nil {
		t.Fatal(err)
	}
	path := got["v"].Path
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestConfinedProjects$", "-test.v")
	cmd.Env = append(os.Environ(), inVolume+"="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if bytes, inodes := use(t, m, path); bytes < 2<<20 || inodes != 1+5 {
		t.Errorf("%d bytes, %d inodes", bytes, inodes)
	}
	// What it was refused is granted to one without a user namespace.
	d, err := openDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := projectquota.Join(d, 5); err != nil {
		t.Error(err)
	}
}

// leaveProject tries to have files in a volume that are not of its project.
func leaveProject(t *testing.T, path string) {
	d, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := projectquota.Join(d, 5); !errors.Is(err, unix.EINVAL) {
		t.Errorf("another project: %v", err)
	}
	const inherits = 0x20000000 // FS_PROJINHERIT_FL
	flags, err := unix.IoctlGetInt(int(d.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil || flags&inherits == 0 {
		t.Fatalf("%x, %v", flags, err)
	}
	if err := unix.IoctlSetPointerInt(int(d.Fd()), unix.FS_IOC_SETFLAGS, flags&^inherits); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a project that is not passed on: %v", err)
	}
	sub := filepath.Join(path, "sub")
	for _, err := range []error{os.Mkdir(sub, 0o755), os.Symlink("x", filepath.Join(sub, "link")),
		os.WriteFile(filepath.Join(sub, "file"), make([]byte, 1<<20), 0o600), unix.Mkfifo(filepath.Join(sub, "fifo"), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(sub, unix.O_TMPFILE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, filepath.Join(sub, "unnamed"), unix.AT_SYMLINK_FOLLOW); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "unnamed"} {
		f, err := os.Open(filepath.Join(sub, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := projectquota.Join(f, 0); !errors.Is(err, unix.EINVAL) {
			t.Errorf("a file of no project: %v", err)
		}
	}
}
