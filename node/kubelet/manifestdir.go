package kubelet

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
)

// A manifestFile is one file of the directory and the pod in it, or what is
// wrong with it.
type manifestFile struct {
	path string
	pod  *corev1.Pod
	// ignored is what of it is not read.
	ignored []string
	err     error
}

// readManifests reads every manifest of a directory, or one file. Each stands alone.
func readManifests(dir, node string) (files []manifestFile, err error) {
	names := []string{dir}
	if st, err := os.Stat(dir); err != nil || st.IsDir() {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		names = nil
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") && !e.IsDir() {
				names = append(names, filepath.Join(dir, e.Name()))
			}
		}
	}
	for _, name := range names {
		f := manifestFile{path: name}
		var b []byte
		if b, f.err = readManifest(f.path); errors.Is(f.err, fs.ErrNotExist) {
			continue
		}
		if f.err == nil {
			f.pod, f.ignored, f.err = decodeStatic(b, f.path, node)
		}
		files = append(files, f)
	}
	return files, nil
}

// readManifest reads a regular file, or one that a link leads to.
func readManifest(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err == nil && len(b) > maxManifest {
		err = fmt.Errorf("larger than %d bytes", maxManifest)
	}
	return b, err
}
