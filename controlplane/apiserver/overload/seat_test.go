package overload

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// taking is a client that takes each part after a while.
type taking struct {
	header http.Header
	after  time.Duration
}

func (t taking) Header() http.Header { return t.header }
func (t taking) WriteHeader(int)     {}

func (t taking) Write(p []byte) (int, error) {
	time.Sleep(t.after)
	return len(p), nil
}

// A list keeps its seat as long as its client takes what it is sent.
func TestListYieldsToSlowClients(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration
		part  int
		early bool
	}{
		{"quick", yieldAfter / 2, 32 << 10, false},
		{"slow", yieldAfter * 2, 32 << 10, true},
		{"slow with small parts", yieldAfter * 2, buffered/2 + 1, true},
		{"slow with what is not waited for", yieldAfter * 2, buffered / 3, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				left := 0
				s := &Seat{taken: true, leave: func() { left++ }}
				w := s.Writer(taking{http.Header{}, c.after})
				for range 3 {
					if n, err := w.Write(make([]byte, c.part)); n != c.part || err != nil {
						t.Fatal(n, err)
					}
				}
				synctest.Wait()
				if early := left > 0; early != c.early {
					t.Errorf("the seat was given back early: %v", early)
				}
				s.end()
				if left != 1 {
					t.Errorf("the seat was given back %d times", left)
				}
			})
		})
	}
}
