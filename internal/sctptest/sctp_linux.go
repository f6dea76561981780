// Package sctptest gives tests connections by SCTP, which Go's net has not. It reads
// what the kernel has, and opens sockets in the network namespace of the calling thread.
package sctptest

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A test is what Need wants of *testing.T.
type test interface {
	Helper()
	Fatal(...any)
	Skip(...any)
}

// Need skips a test where the kernel has no SCTP, which is a module of its own on most
// machines. The guest of test/vm has it.
func Need(t test) {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	switch {
	case err == nil:
		if err = unix.Close(s); err != nil {
			t.Fatal(err)
		}
	case os.Getenv("KNARR_GUEST") == "" && (errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT)):
		t.Skip("needs a kernel with SCTP: make vm: ", err)
	default:
		t.Fatal("a socket of SCTP: ", err)
	}
}

// Listen listens at an address and port. What it accepts are connections as those of TCP,
// each with one stream.
func Listen(address string) (net.Listener, error) {
	f, to, err := socket(address)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := errors.Join(unix.Bind(int(f.Fd()), to), unix.Listen(int(f.Fd()), 16)); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	return net.FileListener(f) // of SOCK_STREAM, which is all that it looks at
}

// Dial connects, and gives up after timeout.
func Dial(address string, timeout time.Duration) (net.Conn, error) {
	f, to, err := socket(address)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(int(f.Fd()), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Connect(int(f.Fd()), to); err != nil {
		if errors.Is(err, unix.EINPROGRESS) {
			err = unix.ETIMEDOUT
		}
		return nil, os.NewSyscallError("connect", err)
	}
	return net.FileConn(f)
}

func socket(address string) (*os.File, unix.Sockaddr, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, nil, err
	}
	family, to := unix.AF_INET, unix.Sockaddr(nil)
	if at.Addr().Is4() {
		to = &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	} else {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	}
	s, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return nil, nil, os.NewSyscallError("socket", err)
	}
	return os.NewFile(uintptr(s), "sctp"), to, nil
}
