// Package projectquota is the project quotas of file systems that have them, ext4 and
// XFS: which project a directory gives the files in it, what the files of a project take
// up, and what they may. It reads and writes the projects of open directories and the
// quotas of their file systems, and reads /etc/projects and /etc/projid.
package projectquota

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What the kernel's headers say of quotas (linux/quota.h, linux/dqblk_xfs.h,
// linux/fs.h).
const (
	projectQuota     = 2
	getQuota         = 0x800007<<8 | projectQuota
	setQuota         = 0x800008<<8 | projectQuota
	getState         = ('X'<<8+8)<<8 | projectQuota
	stateVersion     = 1
	projectsCounted  = 1 << 4
	projectsEnforced = 1 << 5
	limitsOfBlocks   = 1
	limitsOfInodes   = 4
	getAttributes    = 0x801c581f
	setAttributes    = 0x401c5820
	inheritsProject  = 0x200
	stateSize        = 160
	stateFlags       = 2
	limitUnit        = 1024 // bytes
)

type quotaBlock struct {
	spaceLimit, softSpace, space, inodeLimit, softInodes, inodes, spaceTime, inodeTime uint64
	valid                                                                              uint32
	_                                                                                  uint32
}

type attributes struct {
	flags, extent, extents, project, cow uint32
	_                                    [8]byte
}

// A Use is what the files of a project take up, and what they may: limits of 0 are none.
type Use struct{ Bytes, Inodes, ByteLimit, InodeLimit int64 }

// A Project is the project of a directory, 0 if it has none. What is made in a directory
// that passes its project on is of the same project, and the kernel moves and links
// nothing of another project there.
type Project struct {
	ID     uint32
	Passes bool
}

// quotas asks the file system of an open file; before Linux 5.14 there was no such call.
func quotas(f *os.File, command, project uintptr, at unsafe.Pointer) error {
	_, _, no := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), command, project, uintptr(at), 0, 0)
	runtime.KeepAlive(at)
	runtime.KeepAlive(f)
	if no != 0 {
		return no
	}
	return nil
}

func state(f *os.File) (flags uint16, err error) {
	s := [stateSize]byte{stateVersion}
	if err := quotas(f, getState, 0, unsafe.Pointer(&s)); err != nil {
		return 0, err
	}
	return uint16(s[stateFlags]) | uint16(s[stateFlags+1])<<8, nil
}

// ErrNotCounted is a file system that does not count what projects have.
var ErrNotCounted = errors.New("it is not mounted with project quotas (prjquota)")

// Counted is why the file system of an open file does not say what projects have, nil if
// it does.
func Counted(f *os.File) error {
	flags, err := state(f)
	if err == nil && flags&projectsCounted == 0 {
		err = ErrNotCounted
	}
	if err != nil {
		return fmt.Errorf("project quotas of the file system of %s: %w", f.Name(), err)
	}
	return nil
}

// Enforced says whether the file system of an open file keeps projects to their limits;
// one may also count without limiting.
func Enforced(f *os.File) bool {
	flags, err := state(f)
	return err == nil && flags&projectsEnforced != 0
}

// block is what a file system keeps of a project: XFS nothing of one without files.
func block(f *os.File, project uint32) (q quotaBlock, err error) {
	err = quotas(f, getQuota, uintptr(project), unsafe.Pointer(&q))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return q, fmt.Errorf("usage of project %d: %w", project, err)
	}
	return q, nil
}

// UseOf is what the files of a project take up on the file system of an open file, those too
// that have no name any more and are open somewhere.
func UseOf(f *os.File, project uint32) (Use, error) {
	q, err := block(f, project)
	return Use{int64(q.space), int64(q.inodes), int64(q.spaceLimit) * limitUnit, int64(q.inodeLimit)}, err
}

// Taken says whether a project has files or a limit on the file system of an open file.
func Taken(f *os.File, project uint32) (bool, error) {
	q, err := block(f, project)
	return q.space|q.inodes|q.spaceLimit|q.softSpace|q.inodeLimit|q.softInodes != 0, err
}

// Limit sets what a project may have on the file system of an open file, in bytes and
// inodes; 0 is any number.
func Limit(f *os.File, project uint32, size, inodes int64) error {
	q := quotaBlock{spaceLimit: uint64((size + limitUnit - 1) / limitUnit), inodeLimit: uint64(inodes), valid: limitsOfBlocks | limitsOfInodes}
	q.softSpace, q.softInodes = q.spaceLimit, q.inodeLimit
	if err := quotas(f, setQuota, uintptr(project), unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("limit project %d: %w", project, err)
	}
	return nil
}

// Of is the project of an open directory.
func Of(dir *os.File) (Project, error) {
	a, err := attributesOf(dir)
	return Project{a.project, a.flags&inheritsProject != 0}, err
}

func attributesOf(dir *os.File) (a attributes, err error) {
	_, _, no := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), getAttributes, uintptr(unsafe.Pointer(&a)))
	runtime.KeepAlive(dir)
	if no != 0 {
		return a, fmt.Errorf("read the project of %s: %w", dir.Name(), no)
	}
	return a, nil
}

// Join makes an open empty directory, and all that will be in it, part of a project. Not
// so in a user namespace: there the kernel lets nobody change projects, nor what passes
// them on.
func Join(dir *os.File, project uint32) error {
	a, err := attributesOf(dir)
	if err != nil {
		return err
	}
	a.project, a.flags = project, a.flags|inheritsProject
	_, _, no := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), setAttributes, uintptr(unsafe.Pointer(&a)))
	runtime.KeepAlive(dir)
	if no != 0 {
		return fmt.Errorf("set the project of %s: %w", dir.Name(), no)
	}
	return nil
}
