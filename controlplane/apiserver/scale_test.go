package apiserver

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"knarr/controlplane/apiserver/request"
)

// weighing is a server whose every request to /weigh weighs its body's length,
// and waits to be told to end.
type weighing struct {
	*Server
	t       *testing.T
	release chan struct{}
}

func newWeighing(t *testing.T) (*weighing, func()) {
	s, stop := newServer(t)
	w := &weighing{Server: s, t: t, release: make(chan struct{})}
	w.handler = w.chain(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = request.InfoFrom(r.Context()).Weigh(len(body))
		}
		if err != nil {
			out.WriteHeader(http.StatusTooManyRequests)
			return
		}
		if len(body) > dearBody || len(r.URL.RawQuery) > dearQuery {
			<-w.release
		}
	}))
	return w, stop
}

// ask sends a body of so many bytes, and a query of as many.
func (s *weighing) ask(method string, body io.Reader, query int) int {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Hour)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, method, "/api/v1/namespaces/default/pods?labelSelector="+strings.Repeat("a", query), body)
	r.Header.Set("Authorization", "Bearer root")
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w.Code
}

// Dear requests wait for each other, those that are not for nobody.
func TestScale(t *testing.T) {
	const mega = 1 << 20
	for _, c := range []struct {
		name string
		one  func(s *weighing) int
		most int // of them at once
	}{
		{"bodies", func(s *weighing) int { return s.ask("POST", strings.NewReader(strings.Repeat("x", mega)), 0) }, workedOn / mega},
		{"queries", func(s *weighing) int { return s.ask("GET", nil, mega/2-100) }, 2 * queriesRead / mega},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, stop := newWeighing(t)
				defer stop()
				codes := make(chan int, 2*c.most)
				for range cap(codes) {
					go func() { codes <- c.one(s) }()
				}
				synctest.Wait()
				if code := s.ask("POST", strings.NewReader("x"), 0); code != http.StatusOK {
					t.Errorf("a small one beside them: %d", code)
				}
				time.Sleep(s.scale.patience + time.Second)
				synctest.Wait()
				if n := len(codes); n != c.most {
					t.Errorf("%d were refused, want %d", n, c.most)
				}
				for range len(codes) {
					if code := <-codes; code != http.StatusTooManyRequests {
						t.Errorf("refused with %d", code)
					}
				}
				close(s.release)
				for range c.most {
					if code := <-codes; code != http.StatusOK {
						t.Errorf("in its turn: %d", code)
					}
				}
				synctest.Wait()
				if !s.scale.worked.TryAcquire(workedOn) || !s.scale.queries.TryAcquire(queriesRead) || s.scale.held.Load() != 0 {
					t.Error("something is left on the scale")
				}
			})
		})
	}
}

// Bodies that never end do not fill the memory.
func TestBodiesHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := newWeighing(t)
		defer stop()
		const n = 2 * heldAtOnce / largestHeld
		codes := make(chan int, n)
		var pipes []*io.PipeWriter
		for range n {
			r, w := io.Pipe()
			pipes = append(pipes, w)
			go func() { codes <- s.ask("POST", r, 0); _ = r.Close() }()
			go func() { _, _ = w.Write(make([]byte, largestHeld)) }()
		}
		synctest.Wait()
		if held := s.scale.held.Load(); held > heldAtOnce {
			t.Errorf("%d bytes are held", held)
		}
		if len(codes) < n/2-1 {
			t.Errorf("%d of %d were refused", len(codes), n)
		}
		for _, w := range pipes {
			_ = w.CloseWithError(io.ErrUnexpectedEOF)
		}
		for range n {
			if code := <-codes; code != http.StatusTooManyRequests {
				t.Errorf("%d", code)
			}
		}
		if held := s.scale.held.Load(); held != 0 {
			t.Errorf("%d bytes are held of nobody", held)
		}
	})
}
