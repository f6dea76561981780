package disk

import (
	"os"
	"path/filepath"
)

// Check tries what keeps volumes to their size where there are no project quotas:
// the programs that make and mend file systems, and a loop device.
func Check() error {
	for _, name := range []string{mkfs, fsck, resize2fs} {
		if _, err := tool(name); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "knarr-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return tryLoop(filepath.Join(dir, imageFile))
}

// Images is why volumes cannot have file systems of their own in files, nil if
// they can.
func (s *Store) Images() error {
	if _, err := tool(mkfs); err != nil {
		return err
	}
	return s.devices()
}

// devices is why loop devices cannot be had, nil if they can. What failed is tried
// again at each call: a disk that was full may have room by now.
func (s *Store) devices() error {
	s.trying.Lock()
	defer s.trying.Unlock()
	if s.device {
		return nil
	}
	const name = ".try" // no volume's
	if err := s.root.Mkdir(filepath.Join(unfinishedDir, name), 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	defer func() { _ = s.root.RemoveAll(filepath.Join(unfinishedDir, name)) }()
	err := tryLoop(s.path(unfinishedDir, name, imageFile))
	s.device = err == nil
	return err
}

// tryLoop makes a small file and attaches it: what a kernel has in name may still
// be refused.
func tryLoop(image string) error {
	if err := makeImage(image, minImage); err != nil {
		return err
	}
	device, err := attach(image, true)
	if err != nil {
		return err
	}
	return device.Close()
}
