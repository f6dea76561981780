package server

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
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

// hijacked is an answer whose connection can be taken over.
type hijacked struct {
	http.ResponseWriter
	conn net.Conn
}

func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}
