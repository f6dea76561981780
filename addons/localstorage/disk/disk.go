// Package disk keeps volumes and snapshots below one directory of the node. It
// reads and writes that directory and nothing outside it, besides the loop
// devices and mounts of its own images, the project quotas of its own
// directories, and a file in the temporary directory when it tries what the host can.
//
// A volume is <dir>/<id>: its files, or disk.img in it. Its record is
// <dir>/.volumes/<id>.json; what has no record is somebody else's and is never
// touched. A snapshot is in <dir>/.snapshots, its record beside it. What is being made or removed is in <dir>/.unfinished, so that a
// volume appears and goes by one rename, and a crash leaves nothing that the
// next start does not find.
package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/dirfd"
)

// A Limit is what keeps a volume to its size.
type Limit string

// Limits, the best first.
const (
	ProjectQuota Limit = "project-quota" // of the file system that the directory is on
	Image        Limit = "ext4-image"    // a file system of its own in a file
	None         Limit = "none"          // nothing does
)

// Errors that callers tell apart.
var (
	ErrNotFound = errors.New("there is no such volume")
	ErrExists   = errors.New("there is one of that name that is not compatible")
	ErrNoSpace  = errors.New("not enough free space on this node")
	ErrTooLarge = errors.New("a volume that small cannot be made")
	ErrTooMuch  = errors.New("no volume can be that large")
	ErrInUse    = errors.New("the volume is in use on this node")
	ErrBusy     = errors.New("another operation on it is under way")
	ErrLimit    = errors.New("this node cannot enforce a size in that way")
	// ErrPending says that a file system grows once no pod uses it.
	ErrPending = errors.New("the file system grows when the volume is mounted next: without CAP_SYS_RESOURCE it cannot while it is in use")
)

const (
	volumesDir    = ".volumes"
	snapshotsDir  = ".snapshots"
	unfinishedDir = ".unfinished"
	imageFile     = "disk.img"
)

// A Volume is one that is there.
type Volume struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"` // whoever made it asks by this name
	Size    int64     `json:"size"`
	Limit   Limit     `json:"limit"`
	Block   bool      `json:"block,omitempty"`
	Project uint32    `json:"project,omitempty"` // of the quota
	From    string    `json:"from,omitempty"`    // the ID of what it was copied from
	Volume  string    `json:"volume,omitempty"`  // of a snapshot: the ID of its volume
	Created time.Time `json:"created"`
	// Saved says that whoever asked for it has noted that it is there. Until then
	// nobody may know of it.
	Saved bool `json:"saved,omitempty"`
}

// A Store is the volumes and snapshots of one directory. One process at a time
// may have it open.
type Store struct {
	dir   string
	root  *os.Root
	quota bool // project quotas are enforced on the directory's file system

	trying sync.Mutex // held while a loop device is tried
	device bool       // loop devices can be had

	mu        sync.Mutex
	volumes   map[string]*Volume
	snapshots map[string]*Volume
	busy      map[string]bool
	leaving   map[string]uint32 // the projects of those that are being removed
	pending   int64             // what is being made and is not yet among the volumes
	files     int64             // those that are being copied

	linkMemory int           // maxLinkMemory, but in tests
	taking     chan struct{} // held by each snapshot that is being taken

	promising sync.Mutex // held from a look at what is available until it is pending
}

// HasVolumes says whether there are volumes or snapshots in a directory.
func HasVolumes(dir string) (bool, error) {
	for _, kept := range []string{volumesDir, snapshotsDir} {
		entries, err := os.ReadDir(filepath.Join(dir, kept))
		if err != nil && !os.IsNotExist(err) {
			return false, err
		}
		if len(entries) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// Open takes the directory up, makes it if it is missing, finishes what a crash
// has left and finds out how sizes can be enforced.
func Open(ctx context.Context, dir string) (*Store, error) {
	for _, d := range []string{"", volumesDir, snapshotsDir, unfinishedDir} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("storage directory: %w", err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("storage directory: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("storage directory: %w", err)
	}
	s := &Store{dir: dir, root: root, busy: map[string]bool{}, leaving: map[string]uint32{}, linkMemory: maxLinkMemory, taking: make(chan struct{}, maxTaking)}
	if err := s.recover(ctx); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	s.quota = enforcesProjects(dir)
	if err := s.Images(); err != nil {
		slog.WarnContext(ctx, "volumes cannot be images: there are no block volumes, and only project quotas keep others to their size", "projectQuotas", s.quota, "err", err)
	}
	return s, ctx.Err()
}

// Close lets the directory go. Volumes stay mounted.
func (s *Store) Close() error { return s.root.Close() }

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// recover removes what was being made or removed when a process ended, and
// records whose volume is not there. File systems that a copy had frozen go on.
// What cannot be removed is tried again at the next start.
func (s *Store) recover(ctx context.Context) error {
	if err := unmountBelow(s.path(unfinishedDir)); err != nil {
		slog.Warn("what was not finished stays mounted", "dir", s.path(unfinishedDir), "err", err)
	}
	entries, err := fs.ReadDir(s.root.FS(), unfinishedDir)
	if err != nil {
		return fmt.Errorf("storage directory: %w", err)
	}
	for _, e := range entries {
		if err := dirfd.RemoveAll(ctx, s.path(unfinishedDir, e.Name())); err != nil {
			slog.Warn("what was not finished cannot be removed", "err", err)
		}
	}
	if s.volumes, err = s.records(volumesDir, ""); err != nil {
		return err
	}
	if s.snapshots, err = s.records(snapshotsDir, snapshotsDir); err != nil {
		return err
	}
	return s.thaw()
}

// acquire keeps operations on one volume apart: who comes second is to try again.
func (s *Store) acquire(ids ...string) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if s.busy[id] {
			return nil, ErrBusy
		}
	}
	for _, id := range ids {
		s.busy[id] = true
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, id := range ids {
			delete(s.busy, id)
		}
	}, nil
}

// Volume is the one with that ID.
func (s *Store) Volume(id string) (Volume, error) { return s.lookup(s.volumes, id) }

// Snapshot is the one with that ID.
func (s *Store) Snapshot(id string) (Volume, error) { return s.lookup(s.snapshots, id) }

func (s *Store) lookup(in map[string]*Volume, id string) (Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := in[id]; v != nil {
		return *v, nil
	}
	return Volume{}, fmt.Errorf("%q: %w", clip(id), ErrNotFound)
}

// named is the one of that name, nil if there is none.
func (s *Store) named(in map[string]*Volume, name string) *Volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range in {
		if v.Name == name {
			found := *v
			return &found
		}
	}
	return nil
}

// reserve is what volumes leave of a file system to the rest of the node: etcd,
// logs and images. Pure.
func reserve(size int64) int64 {
	const least = 2 << 30
	return min(max(size/10, least), size/2)
}

// Available is how much new volumes may have: what is free, less what is reserved
// for others and what volumes may still take of what they were given.
func (s *Store) Available() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return 0, fmt.Errorf("free space of the storage directory: %w", err)
	}
	free := int64(min(st.Bavail*uint64(st.Bsize), 1<<62)) - reserve(int64(min(st.Blocks*uint64(st.Bsize), 1<<62)))
	s.mu.Lock()
	free -= s.pending
	all := make([]Volume, 0, len(s.volumes))
	for _, v := range s.volumes {
		all = append(all, *v)
	}
	s.mu.Unlock()
	for i := range all {
		if all[i].Limit == None {
			continue
		}
		if used, err := s.used(&all[i]); err == nil {
			free -= max(0, all[i].Size-used)
		}
	}
	return max(0, free), nil
}

// promise sets space aside for what is being made, until it is done. Without a
// limit nothing is, as nothing is afterwards.
func (s *Store) promise(size int64, limit Limit) (done func(), err error) {
	s.promising.Lock()
	defer s.promising.Unlock()
	free, err := s.Available()
	if err != nil {
		return nil, err
	}
	if size > free {
		return nil, fmt.Errorf("%w: %d bytes are asked for, %d can be had", ErrNoSpace, size, free)
	}
	if limit == None {
		size = 0
	}
	add := func(n int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pending += n
	}
	add(size)
	return func() { add(-size) }, nil
}

// growth is what a volume that is in use may get while a snapshot of it is taken.
const growth = 64 << 20

// grown is what a snapshot may have of a volume that has used so much of its size: more
// than that once has been promised to nobody. Pure.
func grown(used, size int64) int64 { return min(size, used+used/4+growth) }

// filesOf is how many files a volume or snapshot with a project has, 0 if nobody knows.
func (s *Store) filesOf(v *Volume) int64 {
	if v.Project == 0 {
		return 0
	}
	use, err := projectUsage(s.dir, v.Project)
	if err != nil {
		return 0
	}
	return use.Inodes
}

// promiseFiles sets inodes aside for a copy, until it is done, if the file system has a
// fixed number of them: a tenth is left to the rest of the node. Files of other volumes
// count when they are there, for many file systems have fewer inodes than volumes may have.
func (s *Store) promiseFiles(n int64) (done func(), err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return nil, fmt.Errorf("free inodes of the storage directory: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if free := freeFiles(st.Files, st.Ffree) - s.files; st.Files > 0 && n > free {
		return nil, fmt.Errorf("%w: %d files are to be copied, %d inodes can be had", ErrNoSpace, n, max(0, free))
	}
	s.files += n
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.files -= n
	}, nil
}

// freeFiles is how many inodes copies may have of a file system's free ones. Pure.
func freeFiles(all, free uint64) int64 {
	return int64(min(free, 1<<62)) - int64(min(all, 1<<62))/10
}

// used is what a volume takes of the disk.
func (s *Store) used(v *Volume) (int64, error) {
	if v.Limit == ProjectQuota {
		q, err := projectUsage(s.dir, v.Project)
		return q.Bytes, err
	}
	st, err := s.root.Lstat(filepath.Join(v.ID, imageFile))
	if err != nil {
		return 0, err
	}
	return st.Sys().(*unixStat).Blocks * 512, nil
}

// limitFor is how the size of a new volume is enforced. Wish is "" for the best
// way there is.
func (s *Store) limitFor(wish Limit, block bool) (Limit, error) {
	switch {
	case block:
		if err := s.devices(); err != nil {
			return "", fmt.Errorf("block volumes need loop devices: %w: %w", ErrLimit, err)
		}
		return Image, nil
	case wish == None, wish == ProjectQuota && s.quota:
		return wish, nil
	case wish == "" && s.quota:
		return ProjectQuota, nil
	case wish == "" && s.Images() != nil:
		return None, nil
	case wish == "":
		return Image, nil
	case wish == Image:
		if err := s.Images(); err != nil {
			return "", fmt.Errorf("%s: %w: %w", wish, ErrLimit, err)
		}
		return Image, nil
	}
	return "", fmt.Errorf("%s: %w", clip(string(wish)), ErrLimit)
}

// clip bounds what messages repeat of a name from elsewhere.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
