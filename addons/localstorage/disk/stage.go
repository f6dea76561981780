package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Stage makes a volume ready on the node: its files at a path, or its loop device.
func (s *Store) Stage(id, at string) error {
	release, err := s.acquire(id)
	if err != nil {
		return err
	}
	defer release()
	v, err := s.Volume(id)
	if err != nil {
		return err
	}
	if v.Block {
		device, err := s.loopOf(&v)
		if err != nil {
			return err
		}
		return device.Close()
	}
	if is, err := mounted(at); err != nil || is {
		return err
	}
	if err := os.MkdirAll(at, 0o750); err != nil {
		return err
	}
	if v.Limit == Image {
		return mountImage(s.path(id, imageFile), at)
	}
	return bind(s.path(id), at, 0)
}

// Unstage takes it off the node again.
func (s *Store) Unstage(id, at string) error {
	release, err := s.acquire(id)
	if err != nil {
		return err
	}
	defer release()
	if err := unmount(at); err != nil {
		return err
	}
	v, err := s.Volume(id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if v.Block {
		return detach(s.path(id, imageFile))
	}
	return err
}

// Publish shows a volume that is staged to one pod.
func (s *Store) Publish(id, staged, target string, flags uintptr) error {
	release, err := s.acquire(id)
	if err != nil {
		return err
	}
	defer release()
	v, err := s.Volume(id)
	if err != nil {
		return err
	}
	if is, err := mounted(target); err != nil || is {
		return err
	}
	if !v.Block {
		if is, err := mounted(staged); err != nil || !is {
			return errors.Join(err, fmt.Errorf("volume %s is not staged at %s", id, clip(staged)))
		}
		if err := os.MkdirAll(target, 0o750); err != nil {
			return err
		}
		if v.Limit == Image {
			flags |= unix.MS_NODEV // as it is staged: options that are set take the place of all
		}
		return bind(staged, target, flags)
	}
	device, err := s.loopOf(&v)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|unix.O_NOFOLLOW, 0o660)
	if err != nil {
		return err
	}
	f.Close()
	return bind(device.Name(), target, flags&unix.MS_RDONLY)
}

// Unpublish takes it from the pod. What is not there is gone.
func (s *Store) Unpublish(id, target string) error {
	release, err := s.acquire(id)
	if err != nil {
		return err
	}
	defer release()
	if err := unmount(target); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// loopOf is the loop device of a block volume, attached if it is not.
func (s *Store) loopOf(v *Volume) (*os.File, error) {
	image := s.path(v.ID, imageFile)
	device, err := attached(image)
	if err == nil && device == nil {
		device, err = attach(image, false)
	}
	return device, err
}

// inUse says whether a volume is mounted or attached on this node.
func (s *Store) inUse(v *Volume) (bool, error) {
	if v.Limit == Image {
		device, err := attached(s.path(v.ID, imageFile))
		if device != nil {
			device.Close()
		}
		return device != nil, err
	}
	return boundElsewhere(s.path(v.ID))
}

// Usage is how full a published volume is.
type Usage struct{ Bytes, BytesUsed, BytesFree, Inodes, InodesUsed, InodesFree int64 }

// Usage asks the file system at a path; of a block volume only the size is known.
func (s *Store) Usage(id, path string) (Usage, bool, error) {
	v, err := s.Volume(id)
	if err != nil {
		return Usage{}, false, err
	}
	if _, err := os.Lstat(path); err != nil {
		return Usage{}, false, fmt.Errorf("%s: %w", clip(path), ErrNotFound)
	}
	if v.Block {
		return Usage{Bytes: v.Size}, true, nil
	}
	if is, err := mounted(path); err != nil || !is {
		return Usage{}, false, errors.Join(err, fmt.Errorf("nothing is mounted at %s: %w", clip(path), ErrNotFound))
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Usage{}, false, err
	}
	b := int64(st.Bsize)
	return Usage{
		Bytes: int64(st.Blocks) * b, BytesUsed: int64(st.Blocks-st.Bfree) * b, BytesFree: int64(st.Bavail) * b,
		Inodes: int64(st.Files), InodesUsed: int64(st.Files - st.Ffree), InodesFree: int64(st.Ffree),
	}, false, nil
}

// Release takes everything below a storage directory off the node, for a cluster
// that is taken down: loop devices, and what is still mounted of them.
func Release(dir string) error {
	images, err := filepath.Glob(filepath.Join(dir, "*", imageFile))
	errs := []error{err}
	for _, image := range images {
		device, at, err := mountedImage(image)
		if device == nil || err != nil {
			errs = append(errs, err)
			continue
		}
		device.Close()
		if at != "" {
			errs = append(errs, unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		}
		errs = append(errs, detach(image))
	}
	return errors.Join(errs...)
}
