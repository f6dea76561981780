package disk

import (
	"os"

	"knarr/internal/projectquota"
)

const (
	bytesPerInode = 16 << 10 // as mkfs.ext4 has it
	minInodes     = 1024
)

// enforcesProjects says whether the file system of a path keeps projects to their limits.
func enforcesProjects(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return projectquota.Enforced(f)
}

// projectUsage is what a project has, and may have, on the file system of a path.
func projectUsage(path string, project uint32) (projectquota.Use, error) {
	f, err := os.Open(path)
	if err != nil {
		return projectquota.Use{}, err
	}
	defer f.Close()
	return projectquota.UseOf(f, project)
}

// inodesFor is how many files a volume of a size may have. Pure.
func inodesFor(size int64) int64 { return max(size/bytesPerInode, minInodes) }

// limitProject sets what a project may have, in bytes and inodes; 0 is any number.
func limitProject(path string, project uint32, size, inodes int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return projectquota.Limit(f, project, size, inodes)
}

// joinFreeProject makes an empty directory part of a project that nobody else has, and
// limits that.
func (s *Store) joinFreeProject(dir *os.File, v *Volume, size, inodes int64) (err error) {
	if v.Project, err = s.freeProject(dir); err != nil {
		return err
	}
	if err := projectquota.Join(dir, v.Project); err != nil {
		return err
	}
	return projectquota.Limit(dir, v.Project, size, inodes)
}

// freeProject is a project that nobody has: no volume, no snapshot, no file and no limit.
func (s *Store) freeProject(dir *os.File) (uint32, error) {
	s.mu.Lock()
	had := map[uint32]bool{}
	for _, all := range []map[string]*Volume{s.volumes, s.snapshots} {
		for _, v := range all {
			had[v.Project] = true
		}
	}
	s.mu.Unlock()
	return projectquota.Volumes.Free(func(p uint32) (bool, error) {
		if had[p] {
			return true, nil
		}
		return projectquota.Taken(dir, p)
	})
}
