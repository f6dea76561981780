package transport

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// A counted connection counts what it is asked to write, and fails when told to.
type counted struct {
	net.Conn
	writes int
	fail   error
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes++
	if c.fail != nil {
		return 0, c.fail
	}
	return c.Conn.Write(p)
}

// The records of a long batch go to the kernel at once; an error of theirs is
// told, and nothing follows.
func TestCoalescedBatch(t *testing.T) {
	cert := certificate()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		kernel := &counted{Conn: near}
		s := tls.Server(&coalescingConn{Conn: kernel}, &tls.Config{Certificates: []tls.Certificate{cert}, DynamicRecordSizingDisabled: true})
		client := tls.Client(far, &tls.Config{InsecureSkipVerify: true})
		met := make(chan error, 1)
		go func() { met <- s.Handshake() }()
		if err := errors.Join(client.Handshake(), <-met); err != nil {
			t.Fatal(err)
		}
		g := &batchingConn{Conn: s}
		for _, c := range []struct{ size, writes int }{{100, 1}, {maxRecord, 1}, {maxRecord + 1, 1}, {5*maxRecord + 7, 1}} {
			batch := bytes.Repeat([]byte("knarr"), c.size/5+1)[:c.size]
			before := kernel.writes
			go func() { met <- g.writeBatch(batch) }()
			got := make([]byte, c.size)
			if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, batch) {
				t.Errorf("%d bytes: %v", c.size, err)
			}
			if err := <-met; err != nil || kernel.writes-before != c.writes {
				t.Errorf("%d bytes: %d writes, %v", c.size, kernel.writes-before, err)
			}
		}
		kernel.fail = io.ErrClosedPipe
		if err := g.writeBatch(make([]byte, 3*maxRecord)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("a batch that could not be sent: %v", err)
		}
		far.Close()
	})
}

// A client that reads nothing costs the host's TCP little.
func TestUnsentIsBounded(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	client, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// Its room is known, and not the kernel's to enlarge.
	if err := client.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	c, err := coalescingListener{tcp}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	taken := 0
	for part := make([]byte, maxRecord); err == nil; {
		var n int
		n, err = c.Write(part)
		taken += n
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || taken < maxUnsent || taken > 4*maxUnsent {
		t.Errorf("the kernel took %d bytes, %v; wants some %d", taken, err, maxUnsent)
	}
}
