package podfile

import (
	"context"

	"golang.org/x/sys/unix"
)

// Usage is what files take up on a disk.
type Usage struct{ Bytes, Inodes uint64 }

// Add adds what others take up.
func (u *Usage) Add(o Usage) { u.Bytes += o.Bytes; u.Inodes += o.Inodes }

// shareBits is how finely what a file takes up is shared among its names.
const shareBits = 8

// Measure is what a file, or a directory with all that is below it, takes up.
// What is mounted below is neither counted nor asked. A file with several
// names counts once: each name is given its share, which takes no memory.
// With an error it is what was counted until then.
func Measure(ctx context.Context, path string) (Usage, error) {
	var bytes, inodes uint64 // in parts of 1<<shareBits
	err := Walk(ctx, path, func(_ int, st *unix.Stat_t) error {
		names := max(uint64(st.Nlink), 1)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			names = 1 // its links are those of its children
		}
		bytes += uint64(st.Blocks) * 512 << shareBits / names
		inodes += 1 << shareBits / names
		return nil
	})
	const half = 1 << (shareBits - 1)
	return Usage{Bytes: (bytes + half) >> shareBits, Inodes: (inodes + half) >> shareBits}, err
}
