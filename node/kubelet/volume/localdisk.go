package volume

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// local binds a volume of the node's own disks, or mounts it if it is a disk. Its
// files are given to the pod's group when no other pod has it.
func (m *Manager) local(ctx context.Context, pod *corev1.Pod, pv *corev1.PersistentVolume, readOnly bool) (Mounted, error) {
	const kind = "kubernetes.io~local-volume"
	path, target := pv.Spec.Local.Path, m.dir(pod, kind, pv.Name)
	got := Mounted{Path: target, ReadOnly: readOnly, Kind: kind}
	return got, m.setUp(ctx, pod, got, pv.Name, target, func(unowned func() error) error {
		if err := makeDir(target, 0o750); err != nil {
			return err
		}
		if !readOnly && !m.inUse(kind, pv.Name) {
			if err := unowned(); err != nil {
				return err
			}
		}
		isDisk := false
		err := m.calls.Do(ctx, path, m.AnswerTime, func() error {
			st, err := os.Stat(path)
			switch {
			case err != nil:
				return fmt.Errorf("path %q does not exist", path)
			case st.IsDir():
				return bind(path, target, readOnly)
			case st.Mode()&fs.ModeDevice == 0 || st.Mode()&fs.ModeCharDevice != 0:
				return errors.New("only directory and block device are supported")
			}
			isDisk = true
			return nil
		})
		if err != nil || !isDisk {
			return err
		}
		if err := m.mountDisk(ctx, formatted{path, fsType(pv), "spec.local.fsType", pv.Spec.MountOptions, readOnly}, target); err != nil {
			return &StepError{"MountVolume.MountDevice failed", fmt.Errorf("local: failed to mount device %s at %s (fstype: %s), error %w", path, target, fsType(pv), err)}
		}
		return nil
	})
}

// fsType is the file system that a disk of the node gets if it has none.
func fsType(pv *corev1.PersistentVolume) string {
	if t := pv.Spec.Local.FSType; t != nil && *t != "" {
		return *t
	}
	return defaultFS
}

// A formatted is a disk that is to be mounted, with a file system of that type, which a user
// may have written in a field.
type formatted struct {
	device, fstype, field string
	options               []string
	readOnly              bool
}

// mountDisk mounts a disk of the node, after making a file system on one that has
// none. Pods that share a disk mount it each: the kernel has one file system for
// all of them.
func (m *Manager) mountDisk(ctx context.Context, d formatted, target string) error {
	known, err := kernelTypes()
	if err != nil {
		return err
	}
	if err := checkType(d.fstype, d.field, known); err != nil {
		return err
	}
	var had string
	// However long it takes: half of a file system is of no use.
	err = m.calls.Do(ctx, d.device, 0, func() (err error) {
		had, err = prepareDisk(ctx, d.device, d.fstype, d.readOnly)
		return err
	})
	if err != nil {
		return err
	}
	if !mountable(d.fstype, had, known) {
		return fmt.Errorf("failed to mount the volume as %q; already contains %s: set %s to what is on the disk", d.fstype, had, d.field)
	}
	err = m.mountProgram(ctx, d.fstype, d.device, target, d.options)
	if err != nil && had != d.fstype {
		return fmt.Errorf("failed to mount the volume as %q; already contains %s. Mount error: %w", d.fstype, had, err)
	}
	if err != nil || !d.readOnly {
		return err
	}
	// This mount alone: another pod may have the disk writable.
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		_ = unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		return fmt.Errorf("mount %s read-only: %w", d.device, err)
	}
	return nil
}

// prepareDisk makes a file system on a disk that has none, or checks the one that
// it has, and says what is on it.
func prepareDisk(ctx context.Context, device, fstype string, readOnly bool) (had string, err error) {
	had, err = contents(ctx, device)
	if err != nil {
		return "", err
	}
	if had == "" {
		if readOnly {
			return "", fmt.Errorf("cannot mount unformatted disk %s as it is in read-only mode", device)
		}
		args := []string{device}
		switch fstype {
		case "ext3", "ext4":
			args = []string{"-F", "-m0", device} // whatever it is: a disk without partitions too
		case "xfs":
			args = []string{"-f", device}
		}
		if out, _, err := program(ctx, "mkfs."+fstype, args...); err != nil {
			return "", fmt.Errorf("format of disk %q failed: type:(%q) output:(%s): %w", device, fstype, out, err)
		}
		return fstype, nil
	}
	if had != fstype || readOnly || mountedDisk(device) {
		return had, nil
	}
	const uncorrected = 4
	if out, code, _ := program(ctx, "fsck", "-a", device); code == uncorrected {
		return "", fmt.Errorf("'fsck' found errors on device %s but could not correct them: %s", device, out)
	}
	return had, nil // whatever else keeps it from checking, the kernel looks too
}

// contents are what a disk has on it: the name of a file system, or "" for nothing.
func contents(ctx context.Context, device string) (string, error) {
	const nothing = 2
	out, code, err := program(ctx, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device)
	if code == nothing {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look what is on %s: %w: %s", device, err, out)
	}
	return format(out)
}

const partitions = "unknown data, probably partitions"

// format reads what blkid says of a disk. Pure.
func format(out string) (string, error) {
	var found string
	for line := range strings.Lines(out) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), "="); key {
		case "PTTYPE":
			return partitions, nil
		case "TYPE":
			found = value
		}
	}
	if found == "" {
		return "", fmt.Errorf("blkid says nothing of what it found: %q", out)
	}
	return found, nil
}

// program runs one of the host's; what it says is bounded, for an event may repeat
// it. The code is -1 if it did not run to its end.
func program(ctx context.Context, name string, args ...string) (out string, code int, err error) {
	const most = 1 << 10
	return hostProgram(ctx, most, "e2fsprogs, xfsprogs or util-linux", name, args...)
}

// hostProgram runs a program of the host, which some packages have, and gives at most so
// many bytes of its output.
func hostProgram(ctx context.Context, most int, packages, name string, args ...string) (out string, code int, err error) {
	path, err := helper(name, packages)
	if err != nil {
		return "", -1, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "LC_ALL=C")
	cmd.WaitDelay = time.Second
	b, err := cmd.CombinedOutput()
	code = -1
	if cmd.ProcessState != nil {
		code = cmd.ProcessState.ExitCode()
	}
	return strings.TrimSpace(string(b[:min(len(b), most)])), code, err
}

// mountedDisk says whether a disk is mounted somewhere that this process sees.
func mountedDisk(device string) bool {
	var st unix.Stat_t
	if unix.Stat(device, &st) != nil {
		return false
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	defer f.Close()
	number := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 2 && fields[2] == number {
			return true
		}
	}
	return false
}
