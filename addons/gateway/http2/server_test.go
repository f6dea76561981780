package http2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A client speaks HTTP/2 frame by frame.
type client struct {
	t    *testing.T
	conn net.Conn
	*http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
	writes  chan func() // done one after the other
}

// connect serves one end of a pipe, and is a client at the other.
func connect(t *testing.T, s *Server, settings ...http2.Setting) *client {
	t.Helper()
	server, conn := net.Pipe()
	go s.Serve(server, nil, nil)
	c := &client{t: t, conn: conn, Framer: http2.NewFramer(conn, conn)}
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.encoder = hpack.NewEncoder(&c.block)
	c.writes = make(chan func(), 100)
	go func() {
		for f := range c.writes {
			f()
		}
	}()
	c.writes <- func() {
		_, _ = io.WriteString(conn, http2.ClientPreface)
		_ = c.WriteSettings(settings...)
	}
	return c
}

// close ends the client.
func (c *client) close() {
	_ = c.conn.Close()
	close(c.writes)
}

// ask sends a request's head, with further fields.
func (c *client) ask(id uint32, end bool, fields ...string) error {
	c.block.Reset()
	fields = append([]string{":method", "POST", ":scheme", "https", ":authority", "h", ":path", "/x"}, fields...)
	for i := 0; i < len(fields); i += 2 {
		_ = c.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndStream: end, EndHeaders: true})
}

// read collects what comes until a frame of which done is true, or the connection's end.
func (c *client) read(done func(http2.Frame) bool) (frames []string) {
	for {
		f, err := c.ReadFrame()
		if err != nil {
			return append(frames, "end")
		}
		text := ""
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			text = fmt.Sprintf("headers %d %s end=%v", f.StreamID, f.PseudoValue("status"), f.StreamEnded())
		case *http2.DataFrame:
			text = fmt.Sprintf("data %d %s end=%v", f.StreamID, f.Data(), f.StreamEnded())
		case *http2.RSTStreamFrame:
			text = fmt.Sprintf("reset %d %v", f.StreamID, f.ErrCode)
		case *http2.GoAwayFrame:
			text = fmt.Sprintf("goaway %v", f.ErrCode)
		default:
			if done != nil && done(f) {
				return frames
			}
			continue
		}
		if frames = append(frames, text); done != nil && done(f) {
			return frames
		}
	}
}

func ended(f http2.Frame) bool {
	switch f := f.(type) {
	case *http2.DataFrame:
		return f.StreamEnded()
	case *http2.MetaHeadersFrame:
		return f.StreamEnded()
	case *http2.RSTStreamFrame:
		return true
	}
	return false
}

// bubble runs a test in which every connection ends.
func bubble(t *testing.T, h http.HandlerFunc, test func(t *testing.T, s *Server)) {
	synctest.Test(t, func(t *testing.T) {
		test(t, NewServer(h))
		time.Sleep(5 * time.Minute) // what timers hold ends
	})
}

func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"nothing": {func(w http.ResponseWriter, r *http.Request) {}, "[headers 1 200 end=true]"},
		"status":  {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) }, "[headers 1 404 end=true]"},
		"body":    {func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "abc") }, "[headers 1 200 end=false data 1 abc end=true]"},
		"flushed": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "abc")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "d")
		}, "[headers 1 200 end=false data 1 abc end=false data 1 d end=true]"},
		"trailer": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "abc")
			w.Header().Set(http.TrailerPrefix+"X", "y")
		}, "[headers 1 200 end=false data 1 abc end=false headers 1  end=true]"},
		"103": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(103)
			w.WriteHeader(204)
		}, "[headers 1 103 end=false headers 1 204 end=true]"},
		"panic": {func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, "[reset 1 INTERNAL_ERROR]"},
		"too much": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1")
			_, _ = io.WriteString(w, "abc")
		}, "[reset 1 INTERNAL_ERROR]"},
	} {
		bubble(t, c.answer, func(t *testing.T, s *Server) {
			client := connect(t, s)
			client.writes <- func() { _ = client.ask(1, true) }
			if got := fmt.Sprint(client.read(ended)); got != c.want {
				t.Errorf("%s: %s, want %s", name, got, c.want)
			}
			client.close()
		})
	}
}

// TestEarlyEnd: a handler that does not want the body resets the stream after its answer,
// and the connection goes on.
func TestEarlyEnd(t *testing.T) {
	bubble(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(413) }, func(t *testing.T, s *Server) {
		c := connect(t, s)
		c.writes <- func() {
			_ = c.ask(1, false, "content-length", "10")
			_ = c.WriteData(1, false, []byte("abc"))
			_ = c.ask(3, true)
		}
		left := 3 // both answers, in any order, and the reset
		got := strings.Join(c.read(func(f http2.Frame) bool {
			if ended(f) {
				left--
			}
			return left == 0
		}), " ")
		if !strings.Contains(got, "headers 1 413 end=true reset 1 NO_ERROR") || !strings.Contains(got, "headers 3 413") {
			t.Error(got)
		}
		c.close()
	})
}

// TestWindows: no more is sent than the client's windows allow, and all of it once they do.
func TestWindows(t *testing.T) {
	bubble(t, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 100_000)) }, func(t *testing.T, s *Server) {
		c := connect(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
		c.writes <- func() { _ = c.ask(1, true) }
		got, allowed := 0, 10
		c.read(func(f http2.Frame) bool {
			if d, ok := f.(*http2.DataFrame); ok {
				if got += len(d.Data()); got > allowed {
					t.Errorf("%d bytes came, %d were allowed", got, allowed)
				}
				if got == allowed && got < 100_000 {
					allowed += 50_000
					c.writes <- func() {
						_ = c.WriteWindowUpdate(0, 50_000)
						_ = c.WriteWindowUpdate(1, 50_000)
					}
				}
			}
			return ended(f)
		})
		if got != 100_000 {
			t.Errorf("%d bytes came", got)
		}
		c.close()
	})
}

// TestStalled: a client that never makes room, or never sends its body, is given up.
func TestStalled(t *testing.T) {
	var failed atomic.Int32
	bubble(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			failed.Add(1)
			panic(http.ErrAbortHandler)
		}
		if _, err := w.Write(make([]byte, 100_000)); err != nil {
			failed.Add(1)
		}
	}, func(t *testing.T, s *Server) {
		c := connect(t, s)
		c.writes <- func() {
			_ = c.ask(1, true)
			_ = c.ask(3, false)
		}
		start := time.Now()
		got := c.read(nil)
		if took := time.Since(start); took > 3*idleTime || failed.Load() != 2 {
			t.Errorf("%d gave up after %v: %.200v", failed.Load(), took, got)
		}
		c.close()
	})
}

// TestFloods: what costs the server more than the client ends the connection.
func TestFloods(t *testing.T) {
	release := make(chan struct{})
	slow := func(w http.ResponseWriter, r *http.Request) { <-release }
	for name, c := range map[string]struct {
		flood func(c *client, i int) error
		want  string
	}{
		"streams that are reset": {func(c *client, i int) error {
			if err := c.ask(uint32(2*i+1), true); err != nil {
				return err
			}
			return c.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel)
		}, "ENHANCE_YOUR_CALM"},
		"empty data": {func(c *client, i int) error {
			if i == 0 {
				return c.ask(1, false)
			}
			return c.WriteData(1, false, nil)
		}, "ENHANCE_YOUR_CALM"},
	} {
		synctest.Test(t, func(t *testing.T) {
			release = make(chan struct{})
			s := NewServer(http.HandlerFunc(slow))
			client := connect(t, s)
			client.writes <- func() {
				for i := range 100_000 {
					if c.flood(client, i) != nil {
						return
					}
				}
			}
			got := client.read(nil)
			close(release)
			if all := fmt.Sprint(got); !strings.Contains(all, c.want) {
				t.Errorf("%s: %.300s", name, all)
			}
			client.close()
			time.Sleep(5 * time.Minute)
		})
	}
}

// TestPings: a client that sends pings and reads no answers does not make the queue grow.
func TestPings(t *testing.T) {
	bubble(t, func(http.ResponseWriter, *http.Request) {}, func(t *testing.T, s *Server) {
		c := connect(t, s)
		sent := 0
		done := make(chan struct{})
		c.writes <- func() {
			defer close(done)
			for ; sent < 1_000_000 && c.WritePing(false, [8]byte{}) == nil; sent++ {
			}
		}
		go func() { // reads the settings and no more
			_, _ = c.ReadFrame()
		}()
		<-done
		if sent > 3*maxQueue/17 {
			t.Errorf("%d pings were taken", sent)
		}
		c.close()
	})
}

// TestTooLarge: a request with too many fields is answered, and not served.
func TestTooLarge(t *testing.T) {
	bubble(t, func(http.ResponseWriter, *http.Request) { t.Error("it is served") }, func(t *testing.T, s *Server) {
		c := connect(t, s)
		c.writes <- func() {
			c.block.Reset()
			for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "h"}, {":path", "/"}} {
				_ = c.encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
			}
			for range 100 { // the first one is long, the others refer to it
				_ = c.encoder.WriteField(hpack.HeaderField{Name: "a", Value: strings.Repeat("a", 1000)})
			}
			_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block.Bytes(), EndHeaders: true, EndStream: true})
		}
		if got := fmt.Sprint(c.read(ended)); got != "[headers 1 431 end=true]" {
			t.Error(got)
		}
		c.close()
	})
}

// TestShutdown: streams in flight and those that are on their way end as they should.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-release
			_, _ = io.WriteString(w, "done")
		}))
		c := connect(t, s)
		c.writes <- func() { _ = c.ask(1, true) }
		frames := make(chan []string, 1)
		go func() { frames <- c.read(nil) }()
		time.Sleep(time.Second)
		done := make(chan struct{})
		go func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			s.Shutdown(ctx)
		}()
		time.Sleep(drainTime / 2)
		c.writes <- func() { _ = c.ask(3, true) }
		time.Sleep(drainTime)
		close(release)
		got := fmt.Sprint(<-frames)
		c.close()
		<-done
		if want := "goaway NO_ERROR"; !strings.Contains(got, want) || !strings.Contains(got, "data 1 done end=true") || !strings.Contains(got, "data 3 done end=true") {
			t.Error(got)
		}
		server, late := net.Pipe()
		go s.Serve(server, nil, nil)
		if _, err := io.ReadAll(late); err != nil && !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// A textConn is a connection whose client sent some bytes and no more.
type textConn struct {
	net.Conn
	in *bytes.Reader
}

func (c *textConn) Read(b []byte) (int, error)       { return c.in.Read(b) }
func (c *textConn) Write(b []byte) (int, error)      { return len(b), nil }
func (c *textConn) Close() error                     { return nil }
func (c *textConn) SetReadDeadline(time.Time) error  { return nil }
func (c *textConn) SetWriteDeadline(time.Time) error { return nil }
func (c *textConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// FuzzFrames: whatever frames a client sends, the connection ends and so do its streams.
func FuzzFrames(f *testing.F) {
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
	c := &client{Framer: framer}
	c.encoder = hpack.NewEncoder(&c.block)
	_ = c.ask(1, false, "content-length", "3", "cookie", "a")
	_ = framer.WriteData(1, true, []byte("abc"))
	_ = framer.WriteWindowUpdate(1, 10)
	_ = framer.WritePing(false, [8]byte{})
	_ = framer.WriteRSTStream(1, http2.ErrCodeCancel)
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n)
		})).Serve(&textConn{in: bytes.NewReader(append([]byte(http2.ClientPreface), b...))}, nil, nil)
	})
}
