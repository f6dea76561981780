package kubelet

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
)

// disk is how full a file system is, bytes and inodes, and which one it is.
type disk struct {
	size, free, inodes, inodesFree uint64
	id                             unix.Fsid
}

// answerTime is how long the node's own disks may take to answer how full they are.
const answerTime = 5 * time.Second

func (k *Kubelet) statDisk(path string) (disk, error) {
	var st unix.Statfs_t
	err := k.calls.Do(context.Background(), path, answerTime, func() error { return unix.Statfs(path, &st) })
	if err != nil {
		return disk{}, fmt.Errorf("stat the disk of %s: %w", path, err)
	}
	b := uint64(st.Bsize)
	return disk{st.Blocks * b, st.Bavail * b, st.Files, st.Ffree, st.Fsid}, nil
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
