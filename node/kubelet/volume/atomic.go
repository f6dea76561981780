package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"knarr/node/kubelet/podfile"
)

const (
	dataLink    = "..data"
	dataLinkNew = "..data_tmp"
)

// WriteAtomic makes the files appear below dir all at once: they are written
// to a fresh directory, the link ..data is renamed onto it, and each name is a
// link through ..data. Nothing is written if nothing changed.
func WriteAtomic(dir string, files map[string]File, group *int64) (changed bool, err error) {
	for name := range files {
		if err := checkName(name); err != nil {
			return false, err
		}
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !os.IsNotExist(err) {
		return false, err
	}
	if old != filepath.Base(old) || old == ".." {
		old = "" // not what this function made
	}
	if old != "" && same(filepath.Join(dir, old), files) {
		return false, nil
	}
	fresh, err := os.MkdirTemp(dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(fresh)
		}
	}()
	if err := os.Chmod(fresh, 0o755); err != nil {
		return false, err
	}
	for name, f := range files {
		if err := writeFile(fresh, name, f, group); err != nil {
			return false, err
		}
	}
	if group != nil {
		if err := groupDirs(fresh, *group); err != nil {
			return false, err
		}
	}
	tmp := filepath.Join(dir, dataLinkNew)
	_ = os.Remove(tmp)
	if err := os.Symlink(filepath.Base(fresh), tmp); err != nil {
		return false, err
	}
	if err := os.Rename(tmp, filepath.Join(dir, dataLink)); err != nil {
		return false, err
	}
	tops := map[string]bool{}
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		tops[top] = true
	}
	for top := range tops {
		link := filepath.Join(dir, top)
		if _, err := os.Readlink(link); err == nil {
			continue
		}
		if err := os.Symlink(filepath.Join(dataLink, top), link); err != nil {
			return false, err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		stale := !strings.HasPrefix(e.Name(), "..") && !tops[e.Name()] && e.Type()&fs.ModeSymlink != 0
		if stale || e.Name() == old && old != "" {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

func checkName(name string) error {
	switch {
	case name == "" || filepath.IsAbs(name):
		return fmt.Errorf("invalid path: must be relative: %q", name)
	case strings.HasPrefix(name, ".."):
		return fmt.Errorf("invalid path: must not start with '..': %s", name)
	case len(name) > 4096:
		return errors.New("invalid path: too long")
	}
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return fmt.Errorf("invalid path: must not contain '..': %s", name)
		}
		if len(part) > 255 {
			return errors.New("invalid path: a name is too long")
		}
	}
	return nil
}

func writeFile(dir, name string, f File, group *int64) error {
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, f.Data, 0o600); err != nil {
		return err
	}
	mode := fs.FileMode(f.Mode & 0o777)
	uid, gid := -1, -1
	if f.User != nil {
		uid = int(*f.User)
	}
	if group != nil {
		gid = int(*group)
		mode |= 0o440
	}
	if uid >= 0 || gid >= 0 {
		if err := os.Chown(path, uid, gid); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode)
}

func groupDirs(root string, group int64) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if err := os.Chown(path, -1, int(group)); err != nil {
			return err
		}
		return os.Chmod(path, 0o755|fs.ModeSetgid)
	})
}

// same says whether dir holds exactly those files.
func same(dir string, files map[string]File) bool {
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		want, ok := files[rel]
		if !ok {
			return fs.ErrNotExist
		}
		if !podfile.Same(dir, rel, want.Data) {
			return fs.ErrNotExist
		}
		n++
		return nil
	})
	return err == nil && n == len(files)
}
