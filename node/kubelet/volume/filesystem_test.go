package volume

import (
	"strings"
	"testing"
)

const someTypes = "nodev\tsysfs\nnodev\tproc\nnodev\ttracefs\n\text3\n\text4\nnodev\toverlay\n\tsquashfs\n"

// TestTypeOfDisk: a disk is asked for a file system of disks, not for one that the kernel
// shows without a disk, nor for a program.
func TestTypeOfDisk(t *testing.T) {
	for fstype, part := range map[string]string{
		"ext4": "", "xfs": "", "squashfs": "", "ntfs-3g": "", "nodev": "",
		"proc": "the node's own", "sysfs": "the node's own", "tracefs": "the node's own", "overlay": "the node's own",
		"fuse.reboot": "is no name", "../x": "is no name", "-o": "is no name", "": "is no name", "ext4,proc": "is no name",
	} {
		err := checkType(fstype, "iscsi.fsType", someTypes)
		if (err == nil) != (part == "") || err != nil && (!strings.Contains(err.Error(), part) || !strings.HasPrefix(err.Error(), "iscsi.fsType: ")) {
			t.Errorf("%q: %v", fstype, err)
		}
	}
}

// TestMountable: a disk is mounted as what is on it.
func TestMountable(t *testing.T) {
	for _, c := range []struct {
		fstype, had string
		want        bool
	}{
		{"ext4", "ext4", true}, {"ext4", "ext3", true}, {"ext2", "ext4", true}, {"ntfs3", "ntfs", true}, {"xfs", "xfs", true},
		{"xfs", "ext4", false}, {"nfs", "ext4", false}, {"fuse", "ext4", false}, {"ext4", "crypto_LUKS", false}, {"vfat", "ntfs", false},
		{"ext4", partitions, true}, {"xfs", partitions, true}, {"squashfs", partitions, true}, // may be leftovers beside it
		{"nfs", partitions, false}, {"proc", partitions, false}, {"cifs", partitions, false},
	} {
		if got := mountable(c.fstype, c.had, someTypes); got != c.want {
			t.Errorf("%s as %s: %v", c.had, c.fstype, got)
		}
	}
}
