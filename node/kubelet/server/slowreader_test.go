package server

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowReader: what is written to a client has the time of one that reads slowly,
// though the library that writes it would give it ten seconds.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		conn, _, err := slowReader{hijacked{httptest.NewRecorder(), there}}.Hijack()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			given time.Duration // 0: none
			want  time.Duration
		}{{10 * time.Second, statusTime}, {4 * time.Hour, 4 * time.Hour}} {
			if err := conn.SetWriteDeadline(time.Now().Add(c.given)); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if _, err := conn.Write([]byte("the end")); err == nil {
				t.Fatal("who reads nothing takes it")
			}
			if took := time.Since(began); took != c.want {
				t.Errorf("a client that is given %v has %v, want %v", c.given, took, c.want)
			}
		}
		if err := conn.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		go func() {
			<-time.After(8 * time.Hour)
			_, _ = here.Read(make([]byte, 100))
		}()
		if _, err := conn.Write([]byte("the end")); err != nil {
			t.Errorf("without a deadline: %v", err)
		}
	})
}

// TestSlowReaderPings: a client that reads later, and sends meanwhile, misses nothing.
func TestSlowReaderPings(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	// Most of it stays with the kubelet until the client reads.
	if err := errors.Join(client.SetReadBuffer(64<<10), accepted.SetWriteBuffer(4<<20)); err != nil {
		t.Fatal(err)
	}
	ended := &ending{TCPConn: accepted, began: make(chan struct{})}
	conn, _, err := slowReader{hijacked{httptest.NewRecorder(), ended}}.Hijack()
	if err != nil {
		t.Fatal(err)
	}
	output := bytes.Repeat([]byte("output "), 100_000)
	if _, err := conn.Write(output); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- conn.Close() }()
	<-ended.began
	for range 3 {
		if _, err := client.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
	}
	got, err := io.ReadAll(client)
	if err != nil || !bytes.Equal(got, output) {
		t.Errorf("the client reads %d bytes of %d: %v", len(got), len(output), err)
	}
	client.Close()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := conn.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// ending tells when its end has begun.
type ending struct {
	*net.TCPConn
	began chan struct{}
	once  sync.Once
}

func (e *ending) CloseWrite() error {
	defer e.once.Do(func() { close(e.began) })
	return e.TCPConn.CloseWrite()
}

func (e *ending) Close() error {
	defer e.once.Do(func() { close(e.began) })
	return e.TCPConn.Close()
}

// hijacked is an answer whose connection can be taken over.
type hijacked struct {
	http.ResponseWriter
	conn net.Conn
}

func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}
