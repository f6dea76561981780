package kubelet

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
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
	statfs := k.statfs
	if statfs == nil {
		statfs = unix.Statfs
	}
	err := k.calls.Do(context.Background(), path, answerTime, func() error { return statfs(path, &st) })
	if err != nil {
		return disk{}, fmt.Errorf("stat the disk of %s: %w", path, err)
	}
	b := uint64(st.Bsize)
	return disk{st.Blocks * b, st.Bavail * b, st.Files, st.Ffree, st.Fsid}, nil
}
