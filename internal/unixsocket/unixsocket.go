// Package unixsocket is what the users of unix sockets share: how they listen, and who is
// at the other end. It reads and writes the sockets' files alone.
package unixsocket

import (
	"errors"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// MaxPath is the longest name of a socket: the size of sun_path less its closing zero.
const MaxPath = 107

// Listen opens a socket in place of one left behind, for whom the mode lets in.
func Listen(path string, mode fs.FileMode) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Peer is the process at the other end, as it was when it connected or listened. Its
// number is 0 where that is in no namespace of this one's.
func Peer(conn *net.UnixConn) (unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return unix.Ucred{}, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, cerr); err != nil {
		return unix.Ucred{}, err
	}
	return *cred, nil
}
