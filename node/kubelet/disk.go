package kubelet

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
)

// disk is how full a file system is, bytes and inodes.
type disk struct{ size, free, inodes, inodesFree uint64 }

func statDisk(path string) (disk, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return disk{}, err
	}
	b := uint64(st.Bsize)
	return disk{st.Blocks * b, st.Bavail * b, st.Files, st.Ffree}, nil
}

// threshold reads a quantity or a percentage of all; 0 if there is none.
func threshold(s string, all int64) int64 {
	if p, ok := strings.CutSuffix(s, "%"); ok {
		f, err := strconv.ParseFloat(p, 64)
		if err != nil {
			return 0
		}
		return int64(float64(all) * f / 100)
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return 0
	}
	return q.Value()
}
