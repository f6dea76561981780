package http2

import (
	"io"
	"net/http"
	"strings"
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
