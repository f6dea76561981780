package volume

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// fileSystem is what names of file systems look like; a program is named by one. There is
// no dot in them: "fuse.X" has mount(8) run the program X.
var fileSystem = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)

const defaultFS = "ext4"

// kin are file systems that are mounted under each other's names.
var kin = [][]string{{"ext2", "ext3", "ext4"}, {"msdos", "vfat"}, {"ntfs", "ntfs3", "ntfs-3g"}}

// onDisks are usual ones, whose modules may not be loaded yet.
var onDisks = []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "vfat", "exfat", "f2fs", "iso9660"}

// checkType says whether a disk may be asked to have a file system of that type: mounting
// proc or sysfs looks at no disk, and shows the node to the pod. The field is what a user
// wrote the type in, and known the kernel's list of file systems. Pure.
func checkType(fstype, field, known string) error {
	if !fileSystem.MatchString(fstype) {
		return fmt.Errorf("%s: %q is no name of a file system", field, fstype)
	}
	if ofKernel(fstype, known) {
		return fmt.Errorf("%s: %q is no file system of a disk but the node's own: set %s to what is on the disk, or leave it out for %s", field, fstype, field, defaultFS)
	}
	return nil
}

// ofKernel says whether the kernel makes up a file system itself, for which it needs no
// device. Pure.
func ofKernel(fstype, known string) bool {
	for line := range strings.Lines(known) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "nodev" && fields[1] == fstype {
			return true
		}
	}
	return false
}

// mountable says whether a disk with that on it may be mounted as a type: as what it is.
// What looks like partitions too may have any file system of disks. Pure.
func mountable(fstype, had, known string) bool {
	if had == partitions {
		return slices.Contains(onDisks, fstype) || slices.ContainsFunc(slices.Collect(strings.Lines(known)), func(line string) bool { return strings.TrimSpace(line) == fstype })
	}
	return fstype == had || slices.ContainsFunc(kin, func(k []string) bool { return slices.Contains(k, fstype) && slices.Contains(k, had) })
}

// kernelTypes is the kernel's list of file systems, as it is now: modules bring more.
func kernelTypes() (string, error) {
	b, err := os.ReadFile("/proc/filesystems")
	return string(b), err
}
