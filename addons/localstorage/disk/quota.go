package disk

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What the kernel's headers say of quotas (linux/quota.h, linux/dqblk_xfs.h,
// linux/fs.h).
const (
	projectQuota       = 2
	getQuota           = 0x800007<<8 | projectQuota
	setQuota           = 0x800008<<8 | projectQuota
	getState           = ('X'<<8+8)<<8 | projectQuota
	stateVersion       = 1
	projectsEnforced   = 1 << 5
	limitsOfBlocks     = 1
	limitsOfInodes     = 4
	getAttributes      = 0x801c581f
	setAttributes      = 0x401c5820
	inheritsProject    = 0x200
	stateSize          = 160
	stateFlags         = 2
	firstProject       = 0x6b000000 // far from what administrators and others number
	projectRange       = 0x00ffffff
	bytesPerInode      = 16 << 10 // as mkfs.ext4 has it
	minInodes          = 1024
	maxProjectAttempts = 64
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

// projectQuotas asks the file system of a path; from Linux 5.14 on it takes a file
// instead of the device, which need not be there.
func projectQuotas(path string, command, project uintptr, at unsafe.Pointer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, _, no := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), command, project, uintptr(at), 0, 0)
	runtime.KeepAlive(at)
	if no != 0 {
		return no
	}
	return nil
}

// enforcesProjects says whether the file system of a path keeps projects to their
// limits; one may also count without limiting.
func enforcesProjects(path string) bool {
	state := [stateSize]byte{stateVersion}
	if projectQuotas(path, getState, 0, unsafe.Pointer(&state)) != nil {
		return false
	}
	return (uint16(state[stateFlags])|uint16(state[stateFlags+1])<<8)&projectsEnforced != 0
}

type projectUse struct{ space, inodes, limit int64 }

func projectUsage(path string, project uint32) (projectUse, error) {
	var q quotaBlock
	if err := projectQuotas(path, getQuota, uintptr(project), unsafe.Pointer(&q)); err != nil {
		return projectUse{}, fmt.Errorf("usage of project %d: %w", project, err)
	}
	return projectUse{int64(q.space), int64(q.inodes), int64(q.spaceLimit) * 1024}, nil
}

// inodesFor is how many files a volume of a size may have. Pure.
func inodesFor(size int64) int64 { return max(size/bytesPerInode, minInodes) }

// limitProject sets what a project may have; 0 is any number.
func limitProject(path string, project uint32, size, inodes int64) error {
	q := quotaBlock{spaceLimit: uint64((size + 1023) / 1024), inodeLimit: uint64(inodes), valid: limitsOfBlocks | limitsOfInodes}
	q.softSpace, q.softInodes = q.spaceLimit, q.inodeLimit
	if err := projectQuotas(path, setQuota, uintptr(project), unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("limit project %d: %w", project, err)
	}
	return nil
}

// joinProject makes an empty directory, and all that will be in it, part of a
// project.
func joinProject(dir *os.File, project uint32) error {
	var a attributes
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), getAttributes, uintptr(unsafe.Pointer(&a))); no != 0 {
		return fmt.Errorf("read the project of %s: %w", dir.Name(), no)
	}
	a.project, a.flags = project, a.flags|inheritsProject
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), setAttributes, uintptr(unsafe.Pointer(&a))); no != 0 {
		return fmt.Errorf("set the project of %s: %w", dir.Name(), no)
	}
	return nil
}

// joinFreeProject makes an empty directory part of a project that nobody else has, and
// limits that.
func (s *Store) joinFreeProject(dir *os.File, v *Volume, size, inodes int64) (err error) {
	if v.Project, err = s.freeProject(); err != nil {
		return err
	}
	if err := joinProject(dir, v.Project); err != nil {
		return err
	}
	return limitProject(s.dir, v.Project, size, inodes)
}

// freeProject is a project that nobody has: no volume, no snapshot, no file and no limit.
func (s *Store) freeProject() (uint32, error) {
	s.mu.Lock()
	taken := map[uint32]bool{}
	for _, all := range []map[string]*Volume{s.volumes, s.snapshots} {
		for _, v := range all {
			taken[v.Project] = true
		}
	}
	s.mu.Unlock()
	for range maxProjectAttempts {
		p := firstProject + rand.Uint32N(projectRange)
		if taken[p] {
			continue
		}
		if use, err := projectUsage(s.dir, p); err != nil || use == (projectUse{}) {
			return p, nil
		}
	}
	return 0, fmt.Errorf("no free project for a quota after %d attempts", maxProjectAttempts)
}
