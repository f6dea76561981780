package apiserver

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowBodiesTakeNoSeats: clients whose bodies never come keep nobody out,
// and one whose body comes late is served.
func TestSlowBodiesTakeNoSeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := newServer(t)
		defer stop()
		const path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
		const review = `{"spec":{"nonResourceAttributes":{"path":"/version","verb":"get"}}}`
		ask := func(body io.Reader) int {
			r := httptest.NewRequestWithContext(t.Context(), "POST", path, body)
			r.Header.Set("Authorization", "Bearer bob")
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			s.handler.ServeHTTP(w, r)
			return w.Code
		}
		const slow = 50
		codes := make(chan int, slow)
		var pipes []*io.PipeWriter
		for range slow {
			r, w := io.Pipe()
			pipes = append(pipes, w)
			go func() { codes <- ask(r) }()
		}
		synctest.Wait()
		began := time.Now()
		if code := ask(strings.NewReader(review)); code != http.StatusCreated {
			t.Errorf("beside slow bodies: %d", code)
		}
		if took := time.Since(began); took > 30*bodyPatience {
			t.Errorf("beside slow bodies: a seat after %s", took)
		}
		for i, w := range pipes {
			if i%2 == 0 {
				_, _ = io.WriteString(w, review)
				_ = w.Close()
				if code := <-codes; code != http.StatusCreated {
					t.Errorf("late: %d", code)
				}
				continue
			}
			_ = w.CloseWithError(io.ErrUnexpectedEOF)
			if code := <-codes; code != http.StatusBadRequest {
				t.Errorf("broken off: %d", code)
			}
		}
		// All seats are given back.
		if code := ask(strings.NewReader(review)); code != http.StatusCreated {
			t.Errorf("afterwards: %d", code)
		}
	})
}
