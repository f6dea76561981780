package unixsocket

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestListen: in place of one left behind, with the mode, and both ends know the other.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, c := range []*net.UnixConn{conn, other} {
		if p, err := Peer(c); err != nil || int(p.Pid) != os.Getpid() || int(p.Uid) != os.Getuid() {
			t.Errorf("%+v, %v", p, err)
		}
	}
}
