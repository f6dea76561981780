package podfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(at("file"), []byte("0123456789"), 0o600), os.Symlink("file", at("link")), os.Symlink("/etc/hosts", at("away")),
		unix.Mkfifo(at("fifo"), 0o600), os.Mkdir(at("dir"), 0o700), os.Symlink("dir", at("dirlink")),
		os.WriteFile(at("dir/file"), []byte("in"), 0o600), os.WriteFile(at("sparse"), nil, 0o600), os.Truncate(at("sparse"), 8<<40))
	for _, c := range []struct {
		name string
		want string
		err  error
	}{
		{"file", "0123456789", nil},
		{"dir/file", "in", nil},
		{"dirlink/file", "", unix.ELOOP},
		{"link", "", ErrNotRegular},
		{"away", "", ErrNotRegular},
		{"fifo", "", ErrNotRegular},
		{"dir", "", ErrNotRegular},
		{"none", "", fs.ErrNotExist},
		{"sparse", "", ErrTooLarge},
		{"../" + filepath.Base(dir) + "/file", "", unix.EXDEV},
	} {
		b, err := Read(dir, c.name, 10)
		if string(b) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v", c.name, b, err)
		}
	}
	if _, err := Read(dir, "file", 9); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one byte too many: %v", err)
	}
	if b, err := Tail(dir, "file", 3); err != nil || string(b) != "789" {
		t.Errorf("tail %q, %v", b, err)
	}
	if b, err := Tail(dir, "sparse", 3); err != nil || string(b) != "\x00\x00\x00" {
		t.Errorf("tail of the sparse file %q, %v", b, err)
	}
	if _, err := ReadHost(at("fifo"), 10); !errors.Is(err, ErrNotRegular) {
		t.Errorf("FIFO of the host: %v", err)
	}
	for name, want := range map[string]string{"link": "0123456789", "dirlink/file": "in", "../file": "0123456789"} {
		f, err := OpenWithin(dir, name)
		if err != nil {
			t.Errorf("%s within: %v", name, err)
			continue
		}
		if b, _ := ReadAll(f, 99); string(b) != want {
			t.Errorf("%s within: %q", name, b)
		}
		f.Close()
	}
	if f, err := OpenWithin(dir, "away"); err == nil {
		t.Errorf("a link led to %s", f.Name())
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(at("secret"), []byte("secret"), 0o600), os.Symlink("secret", at("link")), unix.Mkfifo(at("fifo"), 0o600),
		os.WriteFile(at("sparse"), nil, 0o600), os.Truncate(at("sparse"), 8<<40))
	before, err := os.Stat(at("sparse"))
	must(t, err)
	for _, name := range []string{"new", "link", "fifo", "sparse"} {
		if err := Write(dir, name, []byte("text"), 0o644); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		st, err := os.Lstat(at(name))
		if err != nil || st.Mode() != 0o644 || !Same(dir, name, []byte("text")) {
			t.Errorf("%s: %v, %v", name, st, err)
		}
		if name == "sparse" && !os.SameFile(before, st) {
			t.Error("a regular file was not written in place")
		}
	}
	if b, err := os.ReadFile(at("secret")); err != nil || string(b) != "secret" {
		t.Errorf("the file that the link leads to holds %q, %v", b, err)
	}
}

func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	data := make([]byte, 1<<20)
	must(t, os.WriteFile(at("a"), data, 0o600), os.Link(at("a"), at("b")), os.Link(at("a"), at("c")), os.Mkdir(at("d"), 0o700), os.WriteFile(at("d/e"), data, 0o600))
	u, err := Measure(t.Context(), dir)
	if err != nil || u.Bytes < 2<<20 || u.Bytes > 2<<20+64<<10 || u.Inodes != 4 && u.Inodes != 3 {
		t.Errorf("%+v, %v; want 2 MiB in 4 inodes", u, err)
	}
	if u, err := Measure(t.Context(), at("d/e")); err != nil || u.Bytes < 1<<20 || u.Bytes > 1<<20+8<<10 || u.Inodes != 1 {
		t.Errorf("one file: %+v, %v", u, err)
	}
	for i := range 800 { // listings that take several reads
		must(t, os.MkdirAll(at(fmt.Sprintf("many/a-directory-with-a-name-%d/b", i)), 0o700))
	}
	if u, err := Measure(t.Context(), at("many")); err != nil || u.Inodes != 1601 {
		t.Errorf("many: %+v, %v", u, err)
	}
	must(t, RemoveAll(t.Context(), at("many")))
	must(t, os.Mkdir(at("files"), 0o700))
	for i := range showEvery {
		must(t, os.WriteFile(at(fmt.Sprint("files/", i)), nil, 0o600))
	}
	var shown []Usage
	if _, err := Count(t.Context(), at("files"), func(u Usage) { shown = append(shown, u) }); err != nil || len(shown) != 1 || shown[0].Inodes != showEvery {
		t.Errorf("shown %+v, %v", shown, err)
	}
}

// deep nests directories further than a path can name.
func deep(t *testing.T, dir string, depth int) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(fd, "deep", 0o700))
		next, err := unix.Openat(fd, "deep", unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err, unix.Close(fd))
		fd = next
	}
	f, err := unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
	must(t, err)
	_, err = unix.Write(f, make([]byte, 1<<20))
	must(t, err, unix.Close(f), unix.Close(fd))
}

// TestDeep: neither measuring nor removing takes a file descriptor per level.
func TestDeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "top")
	must(t, os.Mkdir(dir, 0o700))
	const depth = 1000
	deep(t, dir, depth)
	var old unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: old.Max}))
	defer func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	if u, err := Measure(t.Context(), dir); err != nil || u.Inodes != depth+2 || u.Bytes < 1<<20 {
		t.Errorf("%+v, %v", u, err)
	}
	if err := RemoveAll(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

// TestMounted: what is mounted below is neither counted nor removed.
func TestMounted(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.MkdirAll(at("pod/bind"), 0o700), os.Mkdir(at("other"), 0o700), os.WriteFile(at("other/data"), make([]byte, 1<<20), 0o600),
		os.WriteFile(at("pod/file"), nil, 0o600))
	for _, to := range []string{"pod/bind", "pod/file"} {
		from := map[string]string{"pod/bind": "other", "pod/file": "other/data"}[to]
		if on, err := IsMount(at(to)); err != nil || on {
			t.Errorf("%s: mounted %v, %v", to, on, err)
		}
		if err := unix.Mount(at(from), at(to), "", unix.MS_BIND, ""); err != nil {
			need.Skip(t, "needs to mount: run as root with CAP_SYS_ADMIN: ", err)
		}
		defer func() { must(t, unix.Unmount(at(to), 0)) }()
		if on, err := IsMount(at(to)); err != nil || !on {
			t.Errorf("%s: mounted %v, %v", to, on, err)
		}
	}
	if u, err := Measure(t.Context(), at("pod")); err != nil || u.Bytes > 16<<10 {
		t.Errorf("%+v, %v", u, err)
	}
	if err := RemoveAll(t.Context(), at("pod")); err == nil {
		t.Error("removed with something mounted in it")
	}
	if _, err := os.Stat(at("other/data")); err != nil {
		t.Error(err)
	}
}
