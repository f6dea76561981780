package http2

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// TestBodyMemory: a body that is read as it comes, but never to the last byte that is there,
// is not held from its begin.
func TestBodyMemory(t *testing.T) {
	const part, ahead, parts = 16 << 10, 4, 500
	more := make(chan struct{})
	most := 0
	bubble(t, func(w http.ResponseWriter, r *http.Request) {
		b := r.Body.(*body)
		buf := make([]byte, part)
		for range parts {
			synctest.Wait() // what was sent is there
			if _, err := io.ReadFull(r.Body, buf); err != nil {
				t.Error(err)
				return
			}
			b.c.mu.Lock()
			most = max(most, cap(b.st.in))
			b.c.mu.Unlock()
			more <- struct{}{}
		}
	}, func(t *testing.T, s *Server) {
		more = make(chan struct{})
		c := connect(t, s)
		c.writes <- func() {
			_ = c.ask(1, false)
			for range ahead {
				_ = c.WriteData(1, false, make([]byte, part))
			}
			for range parts {
				<-more
				_ = c.WriteData(1, false, make([]byte, part))
			}
		}
		c.read(ended)
		c.close()
	})
	if most == 0 || most > 3*streamWindow {
		t.Errorf("%d bytes are held of a body of which %d are unread", most, ahead*part)
	}
}

// TestHeadMemory: a client that reads no answers does not make their heads pile up, whether
// it gives its streams up or not.
func TestHeadMemory(t *testing.T) {
	for name, gives := range map[string]bool{"waits": false, "resets": true} {
		heads := 0 // bytes
		bubble(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", strings.Repeat("a", 8<<10))
			w.WriteHeader(302)
		}, func(t *testing.T, s *Server) {
			c := connect(t, s)
			go func() {
				for range 3 { // the settings, a window and an acknowledgement
					_, _ = c.ReadFrame()
				}
			}()
			c.writes <- func() {
				for i := range 5000 {
					if c.ask(uint32(2*i+1), true) != nil {
						return
					}
					if gives && c.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel) != nil {
						return
					}
				}
			}
			time.Sleep(10 * time.Second)
			s.mu.Lock()
			for of := range s.conns {
				of.mu.Lock()
				heads = max(heads, len(of.out))
				of.mu.Unlock()
			}
			s.mu.Unlock()
			c.close()
		})
		if heads > 2*maxQueue {
			t.Errorf("a client that %s: %d bytes of heads", name, heads)
		}
	}
}

// TestStalledStreams: streams for which the client makes no room, or whose bodies do not
// come, end although the connection lives. One whose answer has begun may be quiet.
func TestStalledStreams(t *testing.T) {
	var sends, reads, talks atomic.Int32
	bubble(t, func(w http.ResponseWriter, r *http.Request) {
		ended := &reads
		switch r.Header.Get("X") {
		case "sends":
			_, err := w.Write(make([]byte, 100_000))
			if err != nil {
				sends.Add(1)
			}
			return
		case "talks":
			ended = &talks
			w.(http.Flusher).Flush()
		}
		if _, err := io.ReadAll(r.Body); err != nil {
			ended.Add(1)
		}
	}, func(t *testing.T, s *Server) {
		c := connect(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		c.writes <- func() {
			_ = c.ask(1, true, "x", "sends")
			_ = c.ask(3, false, "x", "reads")
			_ = c.ask(5, false, "x", "talks")
			for range 10 {
				time.Sleep(10 * time.Second)
				_ = c.WritePing(false, [8]byte{})
			}
		}
		go c.read(nil)
		time.Sleep(90 * time.Second)
		if got := fmt.Sprint(sends.Load(), reads.Load(), talks.Load()); got != "1 1 0" {
			t.Errorf("ended: %s", got)
		}
		c.close()
	})
}

// TestCanceled: streams that the client opens and gives up end the connection once they are
// many, and not if as many are answered.
func TestCanceled(t *testing.T) {
	for name, answers := range map[string]bool{"only gives up": false, "takes answers": true} {
		var served atomic.Int32
		bubble(t, func(w http.ResponseWriter, r *http.Request) {
			served.Add(1)
			if r.Header.Get("X") == "waits" {
				<-r.Context().Done()
			}
		}, func(t *testing.T, s *Server) {
			c := connect(t, s)
			id := uint32(1)
			c.writes <- func() {
				for range 3 * maxCanceled {
					if c.ask(id, true, "x", "waits") != nil || c.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
						return
					}
					synctest.Wait()
					id += 2
					if answers {
						_ = c.ask(id, true)
						synctest.Wait()
						id += 2
					}
				}
			}
			got := make(chan []string, 1)
			go func() { got <- c.read(nil) }()
			time.Sleep(30 * time.Second)
			c.close()
			if calm := strings.Contains(fmt.Sprint(<-got), "ENHANCE_YOUR_CALM"); calm == answers {
				t.Errorf("a client that %s: ended: %v", name, calm)
			}
		})
	}
}

// TestControls: frames of control beyond those that the traffic needs end the connection.
func TestControls(t *testing.T) {
	for name, frame := range map[string]func(c *client) error{
		"windows": func(c *client) error { return c.WriteWindowUpdate(0, 1) },
		"settings": func(c *client) error {
			return c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
		},
		"pings": func(c *client) error { return c.WritePing(true, [8]byte{}) },
	} {
		bubble(t, func(w http.ResponseWriter, r *http.Request) {}, func(t *testing.T, s *Server) {
			c := connect(t, s)
			c.writes <- func() {
				for range 2 * maxControls {
					if frame(c) != nil {
						return
					}
				}
			}
			got := c.read(nil)
			if all := fmt.Sprint(got); !strings.Contains(all, "ENHANCE_YOUR_CALM") {
				t.Errorf("%s: %.200s", name, all)
			}
			c.close()
		})
	}
}

// TestEagerWindows: a client that tells of each part that it took may do so for as long as
// it takes answers.
func TestEagerWindows(t *testing.T) {
	const part, parts = 64, 2 * maxControls
	bubble(t, func(w http.ResponseWriter, r *http.Request) {
		for range parts {
			if _, err := w.Write(make([]byte, part)); err != nil {
				t.Error(err)
				return
			}
			w.(http.Flusher).Flush()
		}
	}, func(t *testing.T, s *Server) {
		c := connect(t, s)
		c.writes <- func() { _ = c.ask(1, true) }
		got := 0
		c.read(func(f http2.Frame) bool {
			if d, ok := f.(*http2.DataFrame); ok {
				n := uint32(len(d.Data()))
				if got += int(n); n > 0 {
					c.writes <- func() {
						_ = c.WriteWindowUpdate(0, n)
						_ = c.WriteWindowUpdate(1, n)
					}
				}
			}
			return ended(f)
		})
		if got != part*parts {
			t.Errorf("%d bytes came", got)
		}
		c.close()
	})
}

// TestCookies: parts of a cookie are one again.
func TestCookies(t *testing.T) {
	for _, parts := range [][]string{nil, {"a=b"}, {"a=b", "c=d", "e=f"}} {
		bubble(t, func(w http.ResponseWriter, r *http.Request) {
			if got, want := fmt.Sprint(r.Header["Cookie"]), fmt.Sprintf("[%s]", strings.Join(parts, "; ")); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}, func(t *testing.T, s *Server) {
			c := connect(t, s)
			fields := []string(nil)
			for _, p := range parts {
				fields = append(fields, "cookie", p)
			}
			c.writes <- func() { _ = c.ask(1, true, fields...) }
			c.read(ended)
			c.close()
		})
	}
}

// TestUnderscores: names that backends take for others do not reach them.
func TestUnderscores(t *testing.T) {
	bubble(t, func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header) != 1 || r.Header.Get("X-Real-Ip") != "a" {
			t.Errorf("%v", r.Header)
		}
	}, func(t *testing.T, s *Server) {
		c := connect(t, s)
		c.writes <- func() { _ = c.ask(1, true, "x_real_ip", "b", "x-real-ip", "a", "x_y", "b") }
		c.read(ended)
		c.close()
	})
}
