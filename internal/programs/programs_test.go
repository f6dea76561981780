package programs

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
)

func packed(t *testing.T, name string, data []byte) fstest.MapFS {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{
		name + ".zst":    {Data: w.EncodeAll(data, nil)},
		name + ".sha256": {Data: fmt.Appendf(nil, "%x %d\n", sha256.Sum256(data), len(data))},
	}
}

func TestUnpack(t *testing.T) {
	want := strings.Repeat("program ", 10000)
	from := packed(t, "prog", []byte(want))
	for name, spoil := range map[string]func(path string) error{
		"intact":    func(string) error { return nil },
		"missing":   os.Remove,
		"truncated": func(p string) error { return os.Truncate(p, 100) },
		"other bytes": func(p string) error {
			return os.WriteFile(p, []byte(strings.Replace(want, "p", "q", 1)), 0o755)
		},
		"not executable": func(p string) error { return os.Chmod(p, 0o644) },
		"no receipt":     func(p string) error { return os.Remove(receiptPath(p)) },
		"a link": func(p string) error {
			return errors.Join(os.Rename(p, p+"2"), os.Symlink(p+"2", p))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "bin")
			if _, err := unpack(from, dir, "prog"); err != nil {
				t.Fatal(err)
			}
			if err := spoil(filepath.Join(dir, "prog")); err != nil {
				t.Fatal(err)
			}
			path, err := unpack(from, dir, "prog")
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil || string(got) != want {
				t.Errorf("%d bytes, %v; want the program", len(got), err)
			}
			info, err := os.Lstat(path)
			if err != nil || info.Mode() != 0o755 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, ".prog-*")); len(left) > 0 {
				t.Errorf("temporary files are left: %v", left)
			}
		})
	}
}

func TestUnpackKeepsGoodFile(t *testing.T) {
	from := packed(t, "prog", []byte("program"))
	dir := t.TempDir()
	path, err := unpack(from, dir, "prog")
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	// Even when the embedded bytes cannot be unpacked: they are not looked at.
	from["prog.zst"] = &fstest.MapFile{Data: []byte("damaged")}
	if _, err := unpack(from, dir, "prog"); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("a good file was replaced: %v", err)
	}
}

func TestUnpackErrors(t *testing.T) {
	from := packed(t, "prog", []byte("program"))
	if _, err := unpack(from, t.TempDir(), "other"); !errors.Is(err, ErrMissing) {
		t.Errorf("unknown program: %v", err)
	}
	from["prog.sha256"] = &fstest.MapFile{Data: []byte(strings.Repeat("0", 64) + " 7\n")}
	dir := t.TempDir()
	if _, err := unpack(from, dir, "prog"); err == nil {
		t.Error("a program with another digest is unpacked")
	}
	if _, err := os.Stat(filepath.Join(dir, "prog")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is at its place: %v", err)
	}
}
