package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A mountPoint is one of this process's mounts.
type mountPoint struct {
	id     string
	device string // MAJOR:MINOR
	root   string // what of the file system is mounted
	path   string
}

func mountPoints() (all []mountPoint, err error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return parseMounts(string(b)), nil
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func parseMounts(text string) (all []mountPoint) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 4 {
			all = append(all, mountPoint{f[0], f[2], unescape.Replace(f[3]), unescape.Replace(f[4])})
		}
	}
	return all
}

func mounted(path string) (bool, error) {
	all, err := mountPoints()
	for _, m := range all {
		if m.path == path {
			return true, nil
		}
	}
	return false, err
}

// mountedDevice is where the root of the device's file system is mounted, "" if
// nowhere. Pods choose what else of it is.
func mountedDevice(device string) (string, error) {
	all, err := mountPoints()
	for _, m := range all {
		if m.device == device && m.root == "/" {
			return m.path, nil
		}
	}
	return "", err
}

// boundElsewhere says whether a directory, or what is in it, is mounted at another
// place too.
func boundElsewhere(dir string) (bool, error) {
	all, err := mountPoints()
	if err != nil {
		return false, err
	}
	device, root, err := locate(dir, all)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, m := range all {
		if m.device == device && m.path != dir && (m.root == root || strings.HasPrefix(m.root, root+"/")) {
			return true, nil
		}
	}
	return false, nil
}

// locate is the device that a directory's file system is on, and where in that
// file system it is: a mount may show any directory of it.
func locate(dir string, all []mountPoint) (device, root string, err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", "", &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return "", "", fmt.Errorf("find the mount of %s: %w", dir, err)
	}
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)) // without links
	if err != nil {
		return "", "", err
	}
	for _, m := range all {
		below, is := strings.CutPrefix(path, strings.TrimSuffix(m.path, "/"))
		if is && m.id == strconv.FormatUint(st.Mnt_id, 10) {
			return m.device, filepath.Join(m.root, below), nil
		}
	}
	return "", "", fmt.Errorf("find the mount of %s: it is not listed", dir)
}

// unmount takes down every mount at a path.
func unmount(path string) error {
	for {
		is, err := mounted(path)
		if err != nil || !is {
			return err
		}
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// unmountBelow takes down every mount below a directory, the deepest first.
func unmountBelow(dir string) error {
	all, err := mountPoints()
	if err != nil {
		return err
	}
	var errs []error
	for i := len(all) - 1; i >= 0; i-- {
		if strings.HasPrefix(all[i].path, dir+"/") {
			if err := unix.Unmount(all[i].path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				errs = append(errs, fmt.Errorf("unmount %s: %w", all[i].path, err))
			}
		}
	}
	return errors.Join(errs...)
}

// mountFlags are the options of any file system.
var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "rw": 0, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "noatime": unix.MS_NOATIME,
	"nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME, "strictatime": unix.MS_STRICTATIME, "defaults": 0,
}

// Flags turns mount options into flags of mount(2). Pure.
func Flags(options []string) (flags uintptr, err error) {
	for _, o := range options {
		f, known := mountFlags[o]
		if !known {
			return 0, fmt.Errorf("mount option %q is not supported", clip(o))
		}
		flags |= f
	}
	return flags, nil
}

// bind mounts from at to, with flags.
func bind(from, to string, flags uintptr) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind mount %s at %s: %w", from, to, err)
	}
	if flags == 0 {
		return nil
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
		return errors.Join(fmt.Errorf("set the mount options of %s: %w", to, err), unmount(to))
	}
	return nil
}
