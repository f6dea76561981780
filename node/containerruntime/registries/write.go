package registries

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

const hostsFile = "hosts.toml"

// Write makes the files of Hosts in dir, and removes those of an earlier start that there are
// no longer. Directories in which an administrator has a file of their own stay as they are:
// they are the result.
func Write(dir string, files map[string]string) (others []string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name(), hostsFile)
		if _, wanted := files[e.Name()]; wanted || !e.IsDir() {
			continue
		}
		if mine, err := made(path); err != nil || !mine {
			continue
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		_ = os.Remove(filepath.Dir(path)) // unless something else is in it
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, name, hostsFile)
		switch mine, err := made(path); {
		case err == nil && !mine:
			others = append(others, filepath.Dir(path))
			continue
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
		if err := replace(path, files[name]); err != nil {
			return nil, fmt.Errorf("write where images are fetched from: %w", err)
		}
	}
	return others, nil
}

// Made says whether Write has made what is in a directory.
func Made(dir string) bool {
	mine, err := made(filepath.Join(dir, hostsFile))
	return err == nil && mine
}

// made says whether a file was made here.
func made(path string) (bool, error) {
	b, err := os.ReadFile(path)
	return bytes.HasPrefix(b, []byte(marker)), err
}

// replace writes a file that is read while it is written.
func replace(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	next := path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}
