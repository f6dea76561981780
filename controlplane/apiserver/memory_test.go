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

	"knarr/controlplane/apiserver/overload"
	"knarr/controlplane/apiserver/request"
)

// reserving is a server whose every request reserves memory for its body,
// and waits to be told to end.
type reserving struct {
	*Server
	t       *testing.T
	release chan struct{}
}

func newReserving(t *testing.T) (*reserving, func()) {
	s, stop := newServer(t)
	w := &reserving{Server: s, t: t, release: make(chan struct{})}
	w.handler = w.chain(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = request.InfoFrom(r.Context()).ReserveMemory(len(body))
		}
		if err != nil {
			out.WriteHeader(http.StatusTooManyRequests)
			return
		}
		if len(body) > overload.ExpensiveBodySize || overload.ExpensiveQuery(r) {
			<-w.release
		}
	}))
	return w, stop
}

// ask sends a body of so many bytes, and a query of as many.
func (s *reserving) ask(method string, body io.Reader, query int) int {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Hour)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, method, "/api/v1/namespaces/default/pods?labelSelector="+strings.Repeat("a", query), body)
	r.Header.Set("Authorization", "Bearer root")
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w.Code
}

// Expensive requests wait for each other, others for none.
func TestMemoryLimiter(t *testing.T) {
	const mega = 1 << 20
	for _, c := range []struct {
		name string
		one  func(s *reserving) int
		most int // of them at once
	}{
		{"bodies", func(s *reserving) int { return s.ask("POST", strings.NewReader(strings.Repeat("x", mega)), 0) }, overload.MaxProcessed / mega},
		{"queries", func(s *reserving) int { return s.ask("GET", nil, mega/2-100) }, 2 * overload.MaxQueries / mega},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, stop := newReserving(t)
				defer stop()
				codes := make(chan int, 2*c.most)
				for range cap(codes) {
					go func() { codes <- c.one(s) }()
				}
				synctest.Wait()
				if code := s.ask("POST", strings.NewReader("x"), 0); code != http.StatusOK {
					t.Errorf("a small one beside them: %d", code)
				}
				time.Sleep(s.cfg.RequestTimeout/4 + time.Second)
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
				if !s.memory.Idle() {
					t.Error("some memory is still reserved")
				}
			})
		})
	}
}

// Bodies that never end do not fill the memory.
func TestBodiesHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := newReserving(t)
		defer stop()
		const n = 2 * overload.MaxBodies / overload.MaxBody
		codes := make(chan int, n)
		var pipes []*io.PipeWriter
		for range n {
			r, w := io.Pipe()
			pipes = append(pipes, w)
			go func() { codes <- s.ask("POST", r, 0); _ = r.Close() }()
			go func() { _, _ = w.Write(make([]byte, overload.MaxBody)) }()
		}
		synctest.Wait()
		if held := s.memory.Bodies(); held > overload.MaxBodies {
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
		if held := s.memory.Bodies(); held != 0 {
			t.Errorf("%d bytes are held of nobody", held)
		}
	})
}
