package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLoopAttempts bounds how often another process may take the device that was
// free.
const maxLoopAttempts = 32

// attach gives a file a loop device. One that releases itself goes with the last
// mount of it; the device is held by what is returned.
func attach(image string, releases bool) (*os.File, error) {
	f, err := os.OpenFile(image, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const loopControl = 237 // the minor number of a major that many share
	control, err := openDevice("/dev/loop-control", unix.S_IFCHR, unix.Mkdev(10, loopControl))
	if err != nil {
		return nil, fmt.Errorf("loop devices: %w", err)
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(f.Fd())}
	if releases {
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	}
	for range maxLoopAttempts {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("loop devices: %w", err)
		}
		device, err := openLoop(n)
		if err != nil {
			return nil, fmt.Errorf("loop devices: %w", err)
		}
		if err = unix.IoctlLoopConfigure(int(device.Fd()), &config); err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("loop device for %s: %w", image, err)
		}
	}
	return nil, fmt.Errorf("loop device for %s: others took every one that was free", image)
}

func openLoop(n int) (*os.File, error) {
	const major = 7
	return openDevice(fmt.Sprint("/dev/loop", n), unix.S_IFBLK, unix.Mkdev(major, uint32(n)))
}

// openDevice opens a device, whose file a container may lack, and a machine too
// whose kernel loads the driver when it is first opened.
func openDevice(path string, kind uint32, number uint64) (*os.File, error) {
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if !errors.Is(err, os.ErrNotExist) {
		return device, err
	}
	if err := unix.Mknod(path, kind|0o660, int(number)); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

// attached is the loop device that a file has, nil if it has none.
func attached(image string) (*os.File, error) {
	var want unix.Stat_t
	if err := unix.Lstat(image, &want); err != nil {
		return nil, err
	}
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, path := range all {
		// The name is how this process sees the file, which may not be how the one
		// that attached it did; so it is only a hint.
		name, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(name), "/"+filepath.Base(filepath.Dir(image))+"/") {
			continue
		}
		var n int
		if _, err := fmt.Sscanf(path, "/sys/block/loop%d/", &n); err != nil {
			continue
		}
		device, err := openLoop(n)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		if err == nil && info.Inode == want.Ino && info.Device == want.Dev {
			return device, nil
		}
		device.Close()
	}
	return nil, nil
}

// detach takes the loop device of a file from it.
func detach(image string) error {
	device, err := attached(image)
	if device == nil || err != nil {
		return err
	}
	defer device.Close()
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("release the loop device of %s: %w", image, err)
	}
	return nil
}

// setLoopSize tells a loop device that its file has become larger.
func setLoopSize(device *os.File) error {
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("tell %s its size: %w", device.Name(), err)
	}
	return nil
}

// deviceNumber is MAJOR:MINOR of a device that is open.
func deviceNumber(device *os.File) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(device.Fd()), &st); err != nil {
		return "", fmt.Errorf("stat %s: %w", device.Name(), err)
	}
	return number(st.Rdev), nil
}

// number is MAJOR:MINOR of a device, as mountinfo has it.
func number(device uint64) string {
	return fmt.Sprintf("%d:%d", unix.Major(device), unix.Minor(device))
}
