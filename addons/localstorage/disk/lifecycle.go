package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/dirfd"
)

// A Request is for a new volume.
type Request struct {
	ID, Name string
	Size     int64
	Most     int64 // the size may not be rounded beyond it; 0 for any
	Limit    Limit // "" for the best there is
	Block    bool
	From     string // the ID of a volume or a snapshot to copy, "" for an empty one
	Snapshot bool   // From is a snapshot's
}

// Create makes a volume, or finds the one that was made for the same request.
func (s *Store) Create(ctx context.Context, r Request) (Volume, error) {
	if !ValidID(r.ID) {
		return Volume{}, fmt.Errorf("%q is no ID of a volume", clip(r.ID))
	}
	release, err := s.acquire(r.ids()...)
	if err != nil {
		return Volume{}, err
	}
	defer release()
	if have := s.named(s.volumes, r.Name); have != nil {
		if have.Size < r.Size || r.Most > 0 && have.Size > r.Most || have.Block != r.Block || have.From != r.From {
			return Volume{}, fmt.Errorf("volume %q: %w", clip(r.Name), ErrExists)
		}
		return *have, nil
	}
	v := &Volume{ID: r.ID, Name: r.Name, Block: r.Block, From: r.From, Created: time.Now().UTC().Truncate(time.Second)}
	source, err := s.plan(&r, v)
	if err != nil {
		return Volume{}, err
	}
	if r.Most > 0 && v.Size > r.Most {
		return Volume{}, fmt.Errorf("%w: %d bytes are the least", ErrTooLarge, v.Size)
	}
	done, err := s.promise(v.Size, v.Limit)
	if err != nil {
		return Volume{}, err
	}
	defer done()
	if _, err := s.root.Lstat(r.ID); !errors.Is(err, os.ErrNotExist) {
		return Volume{}, fmt.Errorf("%s is there and is no volume: %w", s.path(r.ID), ErrExists)
	}
	unfinished := filepath.Join(unfinishedDir, r.ID)
	err = dirfd.RemoveAll(ctx, s.path(unfinished))
	if err == nil {
		err = s.fill(ctx, v, unfinished, source)
	}
	if err == nil {
		err = s.publish(s.volumes, volumesDir, v, unfinished, v.ID)
	}
	if err != nil {
		return Volume{}, errors.Join(err, s.discard(v, unfinished))
	}
	return *v, nil
}

// ids are what is locked while a volume is made: its source may not go meanwhile.
func (r *Request) ids() []string {
	if r.From == "" {
		return []string{r.ID}
	}
	return []string{r.ID, r.From}
}

// A source is what a new volume is a copy of.
type source struct {
	volume *Volume
	data   string // its folder, from the root
	live   bool   // it is a volume, which may be in use
}

// SizeOf is the size that the volume of a request would have.
func (s *Store) SizeOf(r Request) (int64, error) {
	v := &Volume{Block: r.Block}
	_, err := s.plan(&r, v)
	return v.Size, err
}

// plan finds a request's source, and decides the new volume's limit and size.
func (s *Store) plan(r *Request, v *Volume) (*source, error) {
	from, err := s.source(r, v)
	if err != nil {
		return nil, err
	}
	v.Size, err = roundSize(max(r.Size, 1), v.Limit, v.Block)
	return from, err
}

// source finds what a request copies, nil for nothing, and decides how the new
// volume is kept to its size: as its source is.
func (s *Store) source(r *Request, v *Volume) (*source, error) {
	if r.From == "" {
		limit, err := s.limitFor(r.Limit, r.Block)
		v.Limit = limit
		return nil, err
	}
	find, folder := s.Volume, ""
	if r.Snapshot {
		find, folder = s.Snapshot, snapshotsDir
	}
	from, err := find(r.From)
	if err != nil {
		return nil, err
	}
	if from.Block != r.Block || r.Limit != "" && r.Limit != from.Limit {
		return nil, fmt.Errorf("%s is of another mode or limit: %w", clip(r.From), ErrLimit)
	}
	if r.Size < from.Size {
		return nil, fmt.Errorf("%s has %d bytes, more than are asked for: %w", clip(r.From), from.Size, ErrExists)
	}
	v.Limit, err = s.limitFor(from.Limit, r.Block)
	return &source{&from, filepath.Join(folder, from.ID), !r.Snapshot}, err
}

// mostSize is larger than any disk, and far enough from the largest number to be added to.
const mostSize = 1 << 60

// roundSize is the size that a volume gets: whole units, and for an image what a
// file system needs. Pure.
func roundSize(size int64, limit Limit, block bool) (int64, error) {
	if size > mostSize {
		return 0, fmt.Errorf("%w: %d bytes are asked for, and %d are the most", ErrTooMuch, size, int64(mostSize))
	}
	unit := int64(4096)
	if limit == Image {
		unit = imageUnit
		if !block {
			size = max(size, minImage)
		}
	}
	return (size + unit - 1) / unit * unit, nil
}

// fill makes the content of a new volume in a folder.
func (s *Store) fill(ctx context.Context, v *Volume, folder string, from *source) error {
	if err := s.root.Mkdir(folder, 0o700); err != nil {
		return err
	}
	if v.Limit == Image {
		return s.fillImage(ctx, v, folder, from)
	}
	dir, err := s.root.Open(folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	if v.Limit == ProjectQuota {
		if err := s.joinFreeProject(dir, v, v.Size, inodesFor(v.Size)); err != nil {
			return err
		}
	}
	if err := dir.Chmod(0o777); err != nil {
		return err
	}
	if from == nil {
		return nil
	}
	done, err := s.promiseFiles(s.filesOf(from.volume))
	if err != nil {
		return err
	}
	defer done()
	var most *allowance // without a limit a volume has none while it is copied either
	if v.Limit == ProjectQuota {
		most = &allowance{v.Size, inodesFor(v.Size)}
	}
	return s.copyTree(ctx, from.data, folder, most)
}

func (s *Store) fillImage(ctx context.Context, v *Volume, folder string, from *source) error {
	image := s.path(folder, imageFile)
	if from == nil {
		if err := makeImage(image, v.Size); err != nil || v.Block {
			return err
		}
		return s.makeFS(ctx, image, s.path(folder, "mount"))
	}
	if err := s.copyImage(ctx, from, folder); err != nil {
		return err
	}
	if err := makeImage(image, v.Size); err != nil || v.Block || v.Size == from.volume.Size {
		return err
	}
	return withImage(image, s.path(folder, "mount"), func(string) error { return nil }) // which makes it larger
}

// copyImage copies the image of a volume or a snapshot into a folder.
func (s *Store) copyImage(ctx context.Context, from *source, folder string) error {
	do := func() error {
		in, err := s.open(filepath.Join(from.data, imageFile), unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer in.Close()
		to, err := s.open(folder, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer to.Close()
		return copyFile(ctx, in, int(to.Fd()), imageFile, 0o600, nil)
	}
	if from.live && !from.volume.Block {
		return s.frozen(from.volume, do)
	}
	return do()
}

// publish makes what is finished a volume or a snapshot.
func (s *Store) publish(in map[string]*Volume, records string, v *Volume, unfinished, folder string) error {
	if err := s.note(records, v); err != nil {
		return err
	}
	if err := s.root.Rename(unfinished, folder); err != nil {
		return fmt.Errorf("finish %s: %w", v.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	in[v.ID] = v
	return nil
}

// discard removes what could not be finished.
func (s *Store) discard(v *Volume, unfinished string) error {
	err := unmountBelow(s.path(unfinished))
	if err == nil {
		err = dirfd.RemoveAll(context.Background(), s.path(unfinished)) // the caller's time may be over
	}
	if v.Project != 0 {
		err = errors.Join(err, limitProject(s.dir, v.Project, 0, 0))
	}
	for _, folder := range []string{volumesDir, snapshotsDir} {
		if gone := s.root.Remove(filepath.Join(folder, v.ID+recordEnd)); gone != nil && !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// Delete removes a volume and its data. One that is not there is gone; data
// without a record that can be read stays, and is an error.
func (s *Store) Delete(id string) error {
	return s.remove(id, s.volumes, "")
}

// DeleteSnapshot removes a snapshot.
func (s *Store) DeleteSnapshot(id string) error { return s.remove(id, s.snapshots, snapshotsDir) }

func (s *Store) remove(id string, in map[string]*Volume, folder string) error {
	release, err := s.acquire(id)
	if err != nil {
		return err
	}
	defer release()
	records := folder
	if records == "" {
		records = volumesDir
	}
	v, err := s.lookup(in, id)
	switch {
	case errors.Is(err, ErrNotFound) && !ValidID(id):
		return nil
	case errors.Is(err, ErrNotFound):
		return errors.Join(s.erase(id, records), s.unrecorded(id, folder, records))
	case err != nil:
		return err
	}
	if folder == "" {
		if used, err := s.inUse(&v); err != nil || used {
			return errors.Join(err, map[bool]error{true: ErrInUse}[used])
		}
	}
	unfinished := filepath.Join(unfinishedDir, id)
	if err := dirfd.RemoveAll(context.Background(), s.path(unfinished)); err != nil {
		return err
	}
	if err := s.root.Rename(filepath.Join(folder, id), unfinished); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove volume %s: %w", id, err)
	}
	// From here on it is no volume any more, whatever fails: the next call goes on, or a start.
	s.mu.Lock()
	delete(in, id)
	s.leaving[id] = v.Project
	s.mu.Unlock()
	return s.erase(id, records)
}

// erase removes what there still is of a volume or snapshot that is none any more. Until
// nothing is, each call is an error.
func (s *Store) erase(id, records string) error {
	s.mu.Lock()
	project, leaving := s.leaving[id]
	s.mu.Unlock()
	if leaving {
		if err := s.root.Remove(filepath.Join(records, id+recordEnd)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the record of %s: %w", id, err)
		}
	}
	if err := dirfd.RemoveAll(context.Background(), s.path(unfinishedDir, id)); err != nil {
		return fmt.Errorf("remove the data of %s: %w", id, err)
	}
	if project != 0 {
		if err := limitProject(s.dir, project, 0, 0); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leaving, id)
	return nil
}

// unrecorded is an error if there is data of an ID that no record was read of: whose
// it is cannot be told, so it stays.
func (s *Store) unrecorded(id, folder, records string) error {
	_, err := s.root.Lstat(filepath.Join(folder, id))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", id, err)
	}
	return fmt.Errorf("%s stays: its record %s was missing or could not be read when this process started; mend the record and restart, or remove the directory",
		s.path(folder, id), s.path(records, id+recordEnd))
}

// Expand makes a volume larger, also while it is in use. It has its new size when
// the error is ErrPending too, but not yet the file system in it.
func (s *Store) Expand(id string, size int64) (Volume, error) {
	release, err := s.acquire(id)
	if err != nil {
		return Volume{}, err
	}
	defer release()
	v, err := s.Volume(id)
	if err != nil {
		return v, err
	}
	if size, err = roundSize(size, v.Limit, v.Block); err != nil {
		return v, err
	}
	if size > v.Size {
		done, err := s.promise(size-v.Size, v.Limit)
		if err != nil {
			return v, err
		}
		defer done()
		v.Size = size
		// The record is first: what it says more than there is comes with the next try.
		if err := s.note(volumesDir, &v); err != nil {
			return v, err
		}
		s.mu.Lock()
		s.volumes[id] = &v
		s.mu.Unlock()
	}
	return v, s.enlarge(&v)
}

// Save notes that whoever asked for a volume knows that it is there.
func (s *Store) Save(id string) error {
	release, err := s.acquire(id)
	if err != nil {
		return err
	}
	defer release()
	v, err := s.Volume(id)
	if err != nil || v.Saved {
		return err
	}
	v.Saved = true
	if err := s.note(volumesDir, &v); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.volumes[id] = &v
	return nil
}

// Unsaved are the volumes that nobody may know of.
func (s *Store) Unsaved() (all []Volume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.volumes {
		if !v.Saved {
			all = append(all, *v)
		}
	}
	return all
}

// enlarge gives a volume the size that its record says. What is not mounted is
// made larger when it is.
func (s *Store) enlarge(v *Volume) error {
	switch v.Limit {
	case ProjectQuota:
		return limitProject(s.dir, v.Project, v.Size, inodesFor(v.Size))
	case None:
		return nil
	}
	image := s.path(v.ID, imageFile)
	st, err := s.root.Lstat(filepath.Join(v.ID, imageFile))
	if err == nil && st.Size() < v.Size {
		err = makeImage(image, v.Size)
	}
	if err != nil {
		return err
	}
	device, at, err := mountedImage(image)
	if device == nil || err != nil {
		return err
	}
	defer device.Close()
	if at == "" {
		return setLoopSize(device)
	}
	if err := grow(image, device, at); errors.Is(err, unix.EPERM) {
		return ErrPending
	} else if err != nil {
		return err
	}
	return nil
}

// maxTaking is how many snapshots are taken at once.
const maxTaking = 2

// CreateSnapshot copies a volume as it is at this time.
func (s *Store) CreateSnapshot(ctx context.Context, id, name, volume string) (Volume, error) {
	if !ValidID(id) {
		return Volume{}, fmt.Errorf("%q is no ID of a snapshot", clip(id))
	}
	if s.named(s.snapshots, name) == nil { // it is copied
		select {
		case s.taking <- struct{}{}:
			defer func() { <-s.taking }()
		case <-ctx.Done():
			return Volume{}, ctx.Err()
		}
	}
	release, err := s.acquire(id, volume)
	if err != nil {
		return Volume{}, err
	}
	defer release()
	if have := s.named(s.snapshots, name); have != nil {
		if have.Volume != volume {
			return Volume{}, fmt.Errorf("snapshot %q: %w", clip(name), ErrExists)
		}
		return *have, nil
	}
	if _, err := s.Snapshot(id); err == nil {
		return Volume{}, fmt.Errorf("snapshot %q: %w", clip(name), ErrExists)
	}
	from, err := s.Volume(volume)
	if err != nil {
		return Volume{}, err
	}
	snapshot := &Volume{ID: id, Name: name, Size: from.Size, Limit: from.Limit, Block: from.Block, Volume: volume, Created: time.Now().UTC().Truncate(time.Second)}
	unfinished := filepath.Join(unfinishedDir, id)
	if err = dirfd.RemoveAll(ctx, s.path(unfinished)); err == nil {
		err = s.take(ctx, snapshot, unfinished, &from)
	}
	if err == nil {
		err = s.publish(s.snapshots, snapshotsDir, snapshot, unfinished, filepath.Join(snapshotsDir, id))
	}
	if err != nil {
		return Volume{}, errors.Join(err, s.discard(snapshot, unfinished))
	}
	return *snapshot, nil
}

// take fills the folder of a snapshot. One of a volume with a quota is kept by another to
// what the volume had when it was begun, and some growth: only so much is set aside.
func (s *Store) take(ctx context.Context, snapshot *Volume, folder string, of *Volume) error {
	used, err := s.used(of)
	var most *allowance
	if of.Limit == ProjectQuota {
		if err != nil {
			used, err = of.Size, nil
		}
		most = &allowance{grown(used, of.Size), inodesFor(of.Size)}
		used = most.bytes
	}
	if err == nil {
		done, err := s.promise(used, of.Limit)
		if err != nil {
			return err
		}
		defer done()
	}
	if err := s.root.Mkdir(folder, 0o700); err != nil {
		return err
	}
	if of.Limit == Image {
		return s.copyImage(ctx, &source{of, of.ID, true}, folder)
	}
	done, err := s.promiseFiles(s.filesOf(of))
	if err != nil {
		return err
	}
	defer done()
	if most != nil && s.quota {
		dir, err := s.root.Open(folder)
		if err != nil {
			return err
		}
		defer dir.Close()
		if err := s.joinFreeProject(dir, snapshot, most.bytes, most.files); err != nil {
			return err
		}
	}
	return s.copyTree(ctx, of.ID, folder, most)
}
