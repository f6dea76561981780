package dataplane

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"knarr/addons/gateway/route"
)

// An idler is a client's connection on which nothing happens any more: a file and nothing
// else, so that what is measured is the data plane's.
type idler int

var idleRequest = []byte("GET /good HTTP/1.1\r\nHost: h\r\n\r\n")

// idle connects from an address of loopback, asks once if it is to, and stays. It reports
// whether it was answered: one that comes when there are too many, of which none is idle, is
// not.
func idle(from [4]byte, port int, asks bool) (idler, bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, false, os.NewSyscallError("socket", err)
	}
	for _, step := range []func() error{
		func() error { return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) },
		func() error { return unix.Bind(fd, &unix.SockaddrInet4{Addr: from}) },
		func() error {
			return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30})
		},
		func() error { return unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port}) },
	} {
		if err := step(); err != nil {
			_ = unix.Close(fd)
			return 0, false, err
		}
	}
	if !asks {
		return idler(fd), true, nil
	}
	b, n := make([]byte, 1<<10), 0
	if _, err = unix.Write(fd, idleRequest); err == nil {
		n, err = unix.Read(fd, b)
	}
	if err == nil && bytes.HasPrefix(b[:n], []byte("HTTP/1.1 200 ")) {
		return idler(fd), true, nil
	}
	_ = unix.Close(fd)
	if n > 0 {
		return 0, false, fmt.Errorf("answered %q", b[:n])
	}
	return 0, false, nil
}

// open says whether the connection is there still.
func (i idler) open() bool {
	n, _, err := unix.Recvfrom(int(i), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n < 1 && err == unix.EAGAIN
}

// idleTLS opens connections with TLS that ask once and stay until the test's end.
func (f *fixture) idleTLS(n int, pool *x509.CertPool) {
	f.t.Helper()
	for range n {
		conn := tls.Client(f.dial(443), &tls.Config{RootCAs: pool, ServerName: "h"})
		if _, err := conn.Write(idleRequest); err != nil {
			f.t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 10)); err != nil {
			f.t.Fatal(err)
		}
	}
}

// idleConnections is how many are opened, and how many of them are held at most: KNARR_IDLE,
// or as many as there may be files.
func idleConnections(t *testing.T, files int) (n, bound int) {
	bound = min(files/3, 1<<16)
	n = min(files-bound-500, 100_000)
	if s := os.Getenv("KNARR_IDLE"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	return n, bound
}

// TestIdle: idle connections are held up to a bound, each for little memory; further ones
// take the place of the longest idle ones, and other clients are answered all the while. A
// client that has no more files closes the oldest of its own, which must have ended.
func TestIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("opens many connections")
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	n, bound := idleConnections(t, int(files.Cur))
	room := int(files.Cur) - bound - 500 // a connection that is held has two files here
	f := newPlane(t, Options{})
	cert, pool := newCertificate(t, "h")
	c := one("http", 80, "good", "other")
	secure := c.Listeners[0]
	secure.Name, secure.Port, secure.PublicPort, secure.Protocol, secure.Certificates = "https", 443, 443, route.HTTPS, []*tls.Certificate{cert}
	c.Listeners = append(c.Listeners, secure)
	f.apply(c)
	for _, name := range []string{"good", "other"} {
		f.serve(name, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, name) })
	}
	port := f.sockets[":80"].Addr().(*net.TCPAddr).Port
	ask := func() {
		t.Helper()
		for scheme, port := range map[string]int{"http": 80, "https": 443} {
			client := f.client(port, pool, true)
			client.Timeout = time.Minute
			if answer, body := get(t, client, scheme+"://h/other"); answer.StatusCode != 200 || body != "other" {
				t.Fatalf("another route answers %d %q", answer.StatusCode, body)
			}
			client.CloseIdleConnections()
		}
	}
	ask()
	before, began := held(), time.Now()
	open := make([]idler, 0, n)
	t.Cleanup(func() {
		for _, i := range open {
			_ = unix.Close(int(i))
		}
	})
	refused := 0
	for opened := 0; opened < n; {
		// A thousand of one address, then the next one's: a client may have half of the bound.
		k := opened / 1000
		// Each tenth asks, the others have never said anything.
		i, ok, err := idle([4]byte{127, 1, byte(k >> 8), byte(k)}, port, opened%10 == 0)
		switch {
		case err != nil:
			t.Fatalf("connection %d: %v", opened, err)
		case !ok:
			if refused++; refused > 20*n {
				t.Fatalf("connection %d is refused again and again", opened)
			}
			continue
		}
		if open = append(open, i); len(open) > room {
			if open[0].open() {
				t.Fatalf("%d connections are held", len(open))
			}
			_ = unix.Close(int(open[0]))
			open = open[1:]
		}
		if opened++; opened%(n/20) == 0 {
			ask()
		}
	}
	took := time.Since(began)
	encrypted := min(100, bound/20)
	f.idleTLS(encrypted, pool)
	ask()
	// The data plane gives buffers back a second after the last request.
	var grown int64
	there := 0
	await(t, "little memory", func() bool {
		if there = encrypted; there > bound {
			t.Fatal("too many")
		}
		for _, i := range open {
			if i.open() {
				there++
			}
		}
		grown = held() - before
		return grown/int64(max(there, 1)) < 16<<10
	})
	ask()
	t.Logf("%d connections in %v, %d attempts refused; %d are open (bound %d), %d bytes each", n, took.Round(time.Millisecond), refused, there, bound, grown/int64(there))
	if there > bound {
		t.Errorf("%d connections are open, more than %d", there, bound)
	}
	if took < 60*time.Second && there < bound*9/10 { // slower, and some have been idle for too long
		t.Errorf("only %d connections are open", there)
	}
}
