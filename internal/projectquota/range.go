package projectquota

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Range is 2^24 projects that one kind of directories has, from the first on. They are
// far from what administrators and others number, upstream's kubelet from 1<<20 on.
type Range uint32

const (
	// Volumes are of the storage class local-path.
	Volumes Range = 0x6b000000
	// EmptyDirs are of pods with users of their own.
	EmptyDirs Range = 0x6c000000

	size        = 1 << 24
	maxAttempts = 64
)

// Has says whether a project is one of the range. Pure.
func (r Range) Has(project uint32) bool { return project >= uint32(r) && project-uint32(r) < size }

// Free is a project of the range that is not taken. It is drawn, for whoever owns a file and
// is in no user namespace may make it part of any project: who knows that of another pod
// could have his own files counted as that pod's.
func (r Range) Free(taken func(project uint32) (bool, error)) (uint32, error) {
	for range maxAttempts {
		p := uint32(r) + rand.Uint32N(size)
		t, err := taken(p)
		if err != nil {
			return 0, fmt.Errorf("look for a free project: %w", err)
		}
		if !t {
			return p, nil
		}
	}
	return 0, fmt.Errorf("no free project for a quota after %d attempts", maxAttempts)
}

// The machine's own records of projects, one a line: project:directory, name:project.
const (
	projectsFile = "/etc/projects"
	namesFile    = "/etc/projid"
	maxRecords   = 1 << 20 // bytes of each
)

// Named says whether the machine's own records have a project. They are for its
// administrators and for xfs_quota, and so are not written here.
func Named(project uint32) (bool, error) {
	for path, field := range map[string]int{projectsFile: 0, namesFile: 1} {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		text, err := io.ReadAll(io.LimitReader(f, maxRecords+1))
		f.Close()
		if err == nil && len(text) > maxRecords {
			err = fmt.Errorf("%s has more than %d bytes", path, maxRecords)
		}
		if err != nil || has(string(text), field, project) {
			return err == nil, err
		}
	}
	return false, nil
}

// has says whether a field of a line is a project. Pure.
func has(text string, field int, project uint32) bool {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 2)
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(fields[field]), 10, 32); err == nil && uint32(n) == project {
			return true
		}
	}
	return false
}
