package prober

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// lingerZero makes close drop a socket at once.
func lingerZero(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
	})
}
