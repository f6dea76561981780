package podfile

import (
	"context"

	"golang.org/x/sys/unix"
)

// Usage is what files take up on a disk.
type Usage struct{ Bytes, Inodes uint64 }

// Add adds what others take up.
func (u *Usage) Add(o Usage) { u.Bytes += o.Bytes; u.Inodes += o.Inodes }

// Raise is as much of each as the one of both that has more of it.
func (u Usage) Raise(o Usage) Usage {
	return Usage{Bytes: max(u.Bytes, o.Bytes), Inodes: max(u.Inodes, o.Inodes)}
}

// shareBits is how finely what a file takes up is shared among its names.
const shareBits = 8

// Measure is what a file, or a directory with all that is below it, takes up.
// What is mounted below is neither counted nor asked. A file with several
// names counts once: each name is given its share, which takes no memory.
// With an error it is what was counted, which is not all there is.
func Measure(ctx context.Context, path string) (Usage, error) { return Count(ctx, path, nil) }

// showEvery is after how many files Count shows what it has counted.
const showEvery = 4096

// Count is Measure that shows, unless show is nil, what it has counted so far.
func Count(ctx context.Context, path string, show func(Usage)) (Usage, error) {
	var bytes, inodes uint64 // in parts of 1<<shareBits
	const half = 1 << (shareBits - 1)
	counted := func() Usage { return Usage{Bytes: (bytes + half) >> shareBits, Inodes: (inodes + half) >> shareBits} }
	files := 0
	err := Walk(ctx, path, func(_ int, st *unix.Stat_t) error {
		names := max(uint64(st.Nlink), 1)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			names = 1 // its links are those of its children
		}
		bytes += uint64(st.Blocks) * 512 << shareBits / names
		inodes += 1 << shareBits / names
		if files++; show != nil && files%showEvery == 0 {
			show(counted())
		}
		return nil
	})
	return counted(), err
}
