package cgroup

import (
	"errors"
	"path/filepath"
	"regexp"
)

// UnlimitedHugepages is what a group may have that is not to be limited.
const UnlimitedHugepages = 1 << 62

// hugepageFile names a limit of version 1 or 2, of pages in use or reserved for use.
var hugepageFile = regexp.MustCompile(`^hugetlb\.([0-9]+[KMGT]?B)(\.rsvd)?\.(max|limit_in_bytes)$`)

// LimitHugepages sets the bytes of each size of pages that the kernel limits for a group
// that is there; sizes are named as the kernel has them: 2MB. Where it limits none there
// is nothing to do.
func (t *Tree) LimitHugepages(path string, limit func(size string) int64) error {
	dir := filepath.Join(t.root, path)
	if !t.v2 {
		dir = filepath.Join(t.root, "hugetlb", path)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "hugetlb.*"))
	var errs []error
	for _, file := range files {
		if m := hugepageFile.FindStringSubmatch(filepath.Base(file)); m != nil {
			errs = append(errs, write(dir, filepath.Base(file), limit(m[1])))
		}
	}
	return errors.Join(errs...)
}
