package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	ext4Resize = 0x40086610 // EXT4_IOC_RESIZE_FS
	freezeFS   = 0xc0045877 // FIFREEZE
	thawFS     = 0xc0045878 // FITHAW
	minImage   = 8 << 20    // below it there is no room for a journal
	imageUnit  = 1 << 20
)

// The programs of e2fsprogs that images need.
const (
	mkfs      = "mkfs.ext4"
	fsck      = "e2fsck"
	resize2fs = "resize2fs"
)

// tool is where the host has one of e2fsprogs: it is often not in the path of a
// service.
func tool(name string) (string, error) {
	for _, dir := range []string{"", "/usr/sbin/", "/sbin/"} {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed; install e2fsprogs", name)
}

// makeImage makes a file of a size that takes no room yet.
func makeImage(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = f.Truncate(size)
	return errors.Join(err, f.Close())
}

// makeFS makes an empty file system in an image that anybody may write to, as in
// a directory of k3s: without lost+found, which databases refuse to begin in.
func (s *Store) makeFS(ctx context.Context, image, scratch string) error {
	program, err := tool(mkfs)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, program, "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", image).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make a file system in %s: %w: %s", image, err, clip(string(out)))
	}
	return withImage(image, scratch, func(root string) error {
		if err := os.Remove(filepath.Join(root, "lost+found")); err != nil {
			return err
		}
		return os.Chmod(root, 0o777)
	})
}

// withImage mounts an image that nobody uses at scratch while do lasts.
func withImage(image, scratch string, do func(root string) error) error {
	if err := os.Mkdir(scratch, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	if err := mountImage(image, scratch); err != nil {
		return err
	}
	err := do(scratch)
	if err = errors.Join(err, unmount(scratch)); err == nil {
		err = os.Remove(scratch)
	}
	return err
}

// mountImage mounts the file system of an image, as large as the image is. What is
// freed in it is given back to the disk.
func mountImage(image, target string) error {
	for range 2 {
		device, err := attached(image)
		if err == nil && device == nil {
			device, err = attach(image, true)
		}
		if err != nil {
			return err
		}
		err = unix.Mount(device.Name(), target, "ext4", unix.MS_NODEV, "discard")
		if err != nil {
			device.Close()
			return fmt.Errorf("mount %s at %s: %w", image, target, err)
		}
		err = grow(image, device, target)
		device.Close()
		if !errors.Is(err, unix.EPERM) {
			return err
		}
		// Without CAP_SYS_RESOURCE it grows while nobody uses it.
		if err := unmount(target); err != nil {
			return err
		}
		if err := growUnmounted(image); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: its file system is smaller than it should be", image)
}

// grow makes the file system that is mounted at a path as large as its image.
func grow(image string, device *os.File, at string) error {
	if err := setLoopSize(device); err != nil {
		return err
	}
	blocks, smaller, err := fileSystemBlocks(image)
	if err != nil || !smaller {
		return err
	}
	root, err := openMount(device, at)
	if err != nil {
		return err
	}
	defer root.Close()
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, root.Fd(), ext4Resize, uintptr(unsafe.Pointer(&blocks))); no != 0 {
		return fmt.Errorf("resize the file system of %s to %d blocks: %w", image, blocks, no)
	}
	return nil
}

// growUnmounted makes the file system of an image that nobody uses as large as
// the image is.
func growUnmounted(image string) error {
	if device, err := attached(image); device != nil || err != nil {
		if device != nil {
			device.Close()
		}
		return errors.Join(err, fmt.Errorf("%s is in use: %w", image, ErrInUse))
	}
	check, err := tool(fsck)
	if err != nil {
		return err
	}
	resize, err := tool(resize2fs)
	if err != nil {
		return err
	}
	const mended = 1 // e2fsck's code
	out, err := exec.Command(check, "-f", "-p", image).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == mended {
		err = nil
	}
	if err == nil {
		out, err = exec.Command(resize, image).CombinedOutput()
	}
	if err != nil {
		return fmt.Errorf("resize the file system of %s: %w: %s", image, err, clip(string(out)))
	}
	return nil
}

// slack is by how much a file system may be smaller than its image: a last group
// of blocks that has no room for its own tables is left out.
const slack = 4 << 20

// fileSystemBlocks is how many blocks the file system of an image could have, and
// whether it has fewer. The superblock is the kernel's own: containers reach files
// of the file system, not the image.
func fileSystemBlocks(image string) (blocks uint64, smaller bool, err error) {
	f, err := os.OpenFile(image, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, false, err
	}
	var super [1024]byte
	if _, err := f.ReadAt(super[:], 1024); err != nil {
		return 0, false, fmt.Errorf("read the superblock of %s: %w", image, err)
	}
	number := func(at int) uint64 { return uint64(binary.LittleEndian.Uint32(super[at:])) }
	if magic := binary.LittleEndian.Uint16(super[0x38:]); magic != 0xef53 || number(0x18) > 6 {
		return 0, false, fmt.Errorf("%s has no ext4 file system", image)
	}
	size := uint64(1024) << number(0x18)
	have := number(4) | number(0x150)<<32
	blocks = uint64(st.Size()) / size
	return blocks, blocks > have && (blocks-have)*size > slack, nil
}

// mountedImage is the loop device of an image and where it is mounted, nil and ""
// if it is not.
func mountedImage(image string) (*os.File, string, error) {
	device, err := attached(image)
	if device == nil || err != nil {
		return nil, "", err
	}
	number, err := deviceNumber(device)
	at := ""
	if err == nil {
		at, err = mountedDevice(number)
	}
	if err != nil {
		device.Close()
		return nil, "", err
	}
	return device, at, nil
}

// frozen keeps the file system of a volume's image still while do copies it.
func (s *Store) frozen(v *Volume, do func() error) error {
	device, at, err := mountedImage(s.path(v.ID, imageFile))
	if err != nil {
		return err
	}
	if device == nil || at == "" {
		if device != nil {
			device.Close()
		}
		return do()
	}
	defer device.Close()
	root, err := openMount(device, at)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := ioctl(root, freezeFS); err != nil {
		return fmt.Errorf("freeze the file system of volume %s: %w", v.ID, err)
	}
	defer func() { _ = ioctl(root, thawFS) }()
	return do()
}

// thaw lets all file systems of images go on that a copy had frozen when its
// process ended.
func (s *Store) thaw() error {
	all, err := mountPoints()
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.root != "/" {
			continue // pods choose what it is: opening it may wait for ever
		}
		b, err := os.ReadFile("/sys/dev/block/" + m.device + "/loop/backing_file")
		if err != nil || !strings.HasPrefix(string(b), s.dir+"/") {
			continue
		}
		root, err := openRoot(m.path, m.device)
		if err != nil {
			slog.Warn("the file system of a volume may be frozen", "path", m.path, "err", err)
			continue
		}
		_ = ioctl(root, thawFS) // most are not frozen
		root.Close()
	}
	return nil
}

// openMount opens the root of a device's file system where it is mounted.
func openMount(device *os.File, at string) (*os.File, error) {
	number, err := deviceNumber(device)
	if err != nil {
		return nil, err
	}
	return openRoot(at, number)
}

// openRoot opens a directory of the file system that is on a device, and nothing
// that is mounted over it.
func openRoot(at, device string) (*os.File, error) {
	f, err := os.OpenFile(at, unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && number(st.Dev) != device {
		err = fmt.Errorf("something else is mounted over %s", at)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func ioctl(f *os.File, command uintptr) error {
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, f.Fd(), command, 0); no != 0 {
		return no
	}
	return nil
}
