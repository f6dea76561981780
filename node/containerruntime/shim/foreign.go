package shim

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pidfdInfo is struct pidfd_info of the kernel, as it was first.
type pidfdInfo struct {
	mask, cgroup uint64
	ids          [11]uint32
	exitCode     int32
}

const (
	pidfdInfoExit = 1 << 3
	pidfdGetInfo  = 3<<30 | unsafe.Sizeof(pidfdInfo{})<<16 | 0xff<<8 | 11
	// parentWaits is how long the parent of a foreign process may take to wait
	// for it; only then the kernel tells how it ended.
	parentWaits = 5 * time.Second
)

// foreignStatus gives the status of a process that a program before this one
// started. It may be this one's child still: the program was replaced, not
// killed. Else the kernel tells from version 6.15 on.
func (p *process) foreignStatus() uint32 {
	var status unix.WaitStatus
	if pid, err := unix.Wait4(p.pid, &status, 0, nil); err == nil && pid == p.pid {
		return statusOf(status)
	}
	p.mu.Lock()
	handle := p.handle
	p.mu.Unlock()
	raw, err := handle.SyscallConn()
	if err != nil {
		return unknownStatus
	}
	code := uint32(unknownStatus)
	for until := time.Now().Add(parentWaits); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		info := pidfdInfo{mask: pidfdInfoExit}
		var errno syscall.Errno
		if err := raw.Control(func(fd uintptr) {
			_, _, e := unix.Syscall(unix.SYS_IOCTL, fd, uintptr(pidfdGetInfo), uintptr(unsafe.Pointer(&info)))
			errno = e
		}); err != nil || errno != 0 {
			return code
		}
		if info.mask&pidfdInfoExit != 0 {
			return statusOf(unix.WaitStatus(info.exitCode))
		}
	}
	return code
}

// zombie says whether a process has ended and was not waited for.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	i := bytes.LastIndexByte(stat, ')') // the name may contain anything
	return i >= 0 && i+2 < len(stat) && stat[i+2] == 'Z'
}

// lost notes the end of a container of which nobody saw it.
func (t *task) lost() error {
	p := t.init
	t.endOthers()
	t.tellOOM()
	p.exit = exit{unknownStatus, time.Now()}
	close(p.exited)
	return t.save(&p.exit)
}
