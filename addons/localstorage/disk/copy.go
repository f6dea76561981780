package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"knarr/internal/dirfd"
)

const (
	// maxDepth bounds directories in directories: a container may nest any number.
	maxDepth = 500
	// maxLinkMemory bounds what is remembered of files with several names: some 300,000
	// with names of usual length. A tree with more is not copied, for that would make a
	// file of each name.
	maxLinkMemory = 32 << 20
	// linkCost and folderCost are what a file with several names and a directory of such
	// ones take, besides their names.
	linkCost, folderCost = 96, 64
	// piece is copied between two looks at whether to go on.
	piece = 64 << 20
)

// copyTree copies what is in one folder of the root into another that is there,
// with owners, modes, times, extended attributes and links. What a container
// wrote is hostile, and it may swap anything for anything else meanwhile: all is
// opened by one name from a directory that is open, no link is followed, no pipe
// or device is opened, and nothing outside the folder is reached.
//
// Most is what the copy may have, nil for anything: who renames files ahead of the walk, or
// writes them anew, has them copied again and again.
func (s *Store) copyTree(ctx context.Context, from, to string, most *allowance) error {
	in, err := s.open(from, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	defer in.Close()
	out, err := s.open(to, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	defer out.Close()
	c := &treeCopy{root: out, links: map[uint64]link{}, memory: s.linkMemory, most: most}
	err = c.dir(ctx, in, out, &folder{}, 0)
	if errors.Is(err, unix.EDQUOT) {
		err = fmt.Errorf("%w: %w", errOutgrown, err)
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}

// beneath lets nothing in a name lead elsewhere.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

// open opens what has a name below the storage directory, without following
// links, as an os.Root does.
func (s *Store) open(name string, flags uint64) (*os.File, error) {
	dir, err := dirfd.Open(s.dir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	return openAt(dir, name, flags, 0)
}

func openAt(dir int, name string, flags, mode uint64) (*os.File, error) {
	fd, err := dirfd.Openat2(dir, name, flags|unix.O_NOFOLLOW, mode, beneath)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

type treeCopy struct {
	root   *os.File        // of the copy
	links  map[uint64]link // by inode, the copies of files with several names
	memory int             // how much more may be remembered of them
	most   *allowance      // what more the copy may have
}

// An allowance is how much a copy may have; nil is any number.
type allowance struct{ bytes, files int64 }

var errOutgrown = fmt.Errorf("%w: the copy would have more than its source may have, which changed meanwhile", ErrNoSpace)

// spend takes from it, and says when there is no more.
func (a *allowance) spend(bytes, files int64) error {
	if a == nil {
		return nil
	}
	a.bytes, a.files = a.bytes-bytes, a.files-files
	if a.bytes < 0 || a.files < 0 {
		return errOutgrown
	}
	return nil
}

// A folder is a directory of the copy; without up it is its root.
type folder struct {
	up   *folder
	name string
	kept bool // it is counted
}

// A link is where the copy of a file with several names is.
type link struct {
	in   *folder
	name string
}

// keep remembers a file with several names.
func (c *treeCopy) keep(inode uint64, l link) error {
	c.memory -= linkCost + len(l.name)
	for f := l.in; f != nil && !f.kept; f = f.up {
		f.kept = true
		c.memory -= folderCost + len(f.name)
	}
	if c.memory < 0 {
		return errManyLinks
	}
	c.links[inode] = l
	return nil
}

var errManyLinks = errors.New("too many files with several names to be copied")

// link gives a copy another name.
func (c *treeCopy) link(l link, to *os.File, name string) error {
	var names []string
	for f := l.in; f.up != nil; f = f.up {
		names = append(names, f.name)
	}
	slices.Reverse(names)
	at := c.root
	for len(names) > 0 { // in steps, for a path has PathMax bytes at most
		step := names[0]
		for names = names[1:]; len(names) > 0 && len(step)+1+len(names[0]) < unix.PathMax; names = names[1:] {
			step += "/" + names[0]
		}
		next, err := openAt(int(at.Fd()), step, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer next.Close()
		at = next
	}
	return unix.Linkat(int(at.Fd()), l.name, int(to.Fd()), name, 0)
}

// dir copies what is in a directory.
func (c *treeCopy) dir(ctx context.Context, from, to *os.File, at *folder, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("directories are nested more than %d deep", maxDepth)
	}
	for {
		entries, err := from.ReadDir(1000)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := c.entry(ctx, from, to, at, e.Name(), depth); err != nil {
				return fmt.Errorf("%s: %w", e.Name(), err)
			}
		}
	}
	st, err := from.Stat()
	if err != nil {
		return err
	}
	return errors.Join(copyAttributes(from, to, c.most), owner(to, st))
}

// entry copies one thing, whatever it is: it is held open, so that what was looked
// at is what is copied.
func (c *treeCopy) entry(ctx context.Context, from, to *os.File, at *folder, name string, depth int) error {
	held, err := openAt(int(from.Fd()), name, unix.O_PATH, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it went while this was copied
	}
	if err != nil {
		return err
	}
	defer held.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(held.Fd()), &st); err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		if first, known := c.links[st.Ino]; known {
			return c.link(first, to, name)
		}
		if err := c.keep(st.Ino, link{at, name}); err != nil {
			return err
		}
	}
	if err := c.most.spend(0, 1); err != nil {
		return err
	}
	switch kind {
	case unix.S_IFREG:
		in, err := reopen(held, unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer in.Close()
		return copyFile(ctx, in, int(to.Fd()), name, fs.FileMode(st.Mode).Perm(), c.most)
	case unix.S_IFDIR:
		return c.subdir(ctx, held, to, &folder{up: at, name: name}, depth)
	case unix.S_IFLNK:
		return copyLink(held, to, name, &st)
	}
	// A pipe, a socket or a device is made anew.
	if err := unix.Mknodat(int(to.Fd()), name, st.Mode, int(st.Rdev)); err != nil {
		return fmt.Errorf("make it: %w", err)
	}
	return chown(to, name, &st)
}

func (c *treeCopy) subdir(ctx context.Context, held, to *os.File, at *folder, depth int) error {
	name := at.name
	if err := unix.Mkdirat(int(to.Fd()), name, 0o700); err != nil {
		return err
	}
	out, err := openAt(int(to.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	in, err := reopen(held, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer in.Close()
	held.Close() // two are open for each level
	return c.dir(ctx, in, out, at, depth+1)
}

// reopen opens for reading what is held with O_PATH: a file or a directory.
func reopen(held *os.File, flags int) (*os.File, error) {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(held.Fd())), flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open it: %w", err)
	}
	return os.NewFile(uintptr(fd), held.Name()), nil
}

func copyLink(held, to *os.File, name string, st *unix.Stat_t) error {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(held.Fd()), "", target)
	if err == nil {
		err = unix.Symlinkat(string(target[:n]), int(to.Fd()), name)
	}
	if err != nil {
		return err
	}
	return chown(to, name, st)
}

func chown(dir *os.File, name string, st *unix.Stat_t) error {
	return unix.Fchownat(int(dir.Fd()), name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW)
}

// copyFile copies a file into a directory: by sharing its blocks where the file
// system can, else what is not a hole.
func copyFile(ctx context.Context, in *os.File, dir int, name string, mode fs.FileMode, most *allowance) error {
	st, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := openAt(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, uint64(mode))
	if err != nil {
		return err
	}
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil {
		err = copyData(ctx, in, out, st.Size(), most)
	} else {
		err = most.spend(st.Sys().(*unixStat).Blocks*512, 0)
	}
	if err == nil {
		err = copyAttributes(in, out, most)
	}
	if err == nil {
		err = owner(out, st)
	}
	return errors.Join(err, out.Close())
}

// copyData copies the parts of a file that are not holes.
func copyData(ctx context.Context, in, out *os.File, size int64, most *allowance) error {
	if err := out.Truncate(size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // holes until the end
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for at = data; at < min(end, size); {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(end-at, piece)
			if _, err := in.Seek(at, io.SeekStart); err != nil {
				return err
			}
			if _, err := out.Seek(at, io.SeekStart); err != nil {
				return err
			}
			if n, err = io.CopyN(out, in, n); err != nil && !errors.Is(err, io.EOF) || n == 0 {
				return err
			}
			if err := most.spend(n, 0); err != nil {
				return err
			}
			at += n
		}
	}
	return nil
}

// owner gives a copy the owner, mode and times of what it is of.
func owner(f *os.File, st fs.FileInfo) error {
	sys := st.Sys().(*unixStat)
	if err := f.Chown(int(sys.Uid), int(sys.Gid)); err != nil {
		return err
	}
	if err := unix.Fchmod(int(f.Fd()), sys.Mode&0o7777); err != nil {
		return err
	}
	times := []unix.Timeval{unix.NsecToTimeval(st.ModTime().UnixNano()), unix.NsecToTimeval(st.ModTime().UnixNano())}
	return unix.Futimes(int(f.Fd()), times)
}

// copyAttributes copies extended attributes where both sides have them: access
// lists, capabilities of programs, users' own.
func copyAttributes(from, to *os.File, most *allowance) error {
	buf := make([]byte, 64<<10)
	n, err := unix.Flistxattr(int(from.Fd()), buf)
	if err != nil {
		if errors.Is(err, unix.ENOTSUP) {
			return nil
		}
		return fmt.Errorf("list the attributes of %s: %w", from.Name(), err)
	}
	if n == 0 {
		return nil
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		size, err := unix.Fgetxattr(int(from.Fd()), name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err == nil {
			err = most.spend(int64(size), 0)
		}
		if err == nil {
			err = unix.Fsetxattr(int(to.Fd()), name, value[:size], 0)
		}
		if err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("attribute %s of %s: %w", name, from.Name(), err)
		}
	}
	return nil
}
