package http2

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
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
