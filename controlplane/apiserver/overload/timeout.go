// Package overload bounds what expensive requests and slow clients take from
// others: memory, seats of priority and fairness, and time. It reads requests, and
// writes answers in their handlers' place; it keeps nothing.
package overload

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"knarr/controlplane/apiserver/request"
	"knarr/internal/run"
)

// From these sizes on a request may compute for longer than its time, whatever
// its context says.
const (
	ExpensiveBodySize  = request.ExpensiveSize
	ExpensiveQuerySize = 8 << 10
)

// ExpensiveQuery says that a request's query is expensive to parse and to keep.
func ExpensiveQuery(r *http.Request) bool { return len(r.URL.RawQuery) > ExpensiveQuerySize }

// Expensive says that a request is answered when its time is over even if it is not
// done. Others are not worth a goroutine of their own.
func Expensive(r *http.Request) bool {
	return r.ContentLength > ExpensiveBodySize || r.ContentLength < 0 || ExpensiveQuery(r)
}

// Timed says that w is of a request that AnswerInTime serves.
func Timed(w http.ResponseWriter) bool {
	_, timed := w.(*timedWriter)
	return timed
}

// AnswerInTime has h answer r, and has late do so once timeout is over. h goes on
// alone then: what it writes goes nowhere. ended is called when h returns.
func AnswerInTime(h http.Handler, late http.HandlerFunc, ended func(), w http.ResponseWriter, r *http.Request, timeout time.Duration) {
	t := &timedWriter{w: w, header: w.Header().Clone()}
	own := r.Clone(r.Context()) // the server looks at r again once we return
	done := make(chan any, 1)
	run.Go("API server: request", func() {
		var fault any = http.ErrAbortHandler // of a goroutine that ends without a word
		defer ended()
		defer func() {
			if p := recover(); p != nil {
				if fault = p; p != http.ErrAbortHandler {
					fault = fmt.Sprintf("%v\n%s", p, debug.Stack())
				}
			}
			done <- fault
		}()
		h.ServeHTTP(t, own)
		fault = nil
	})
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case fault := <-done:
		if fault != nil {
			panic(fault)
		}
	case <-timer.C:
		began := time.Now()
		run.Go("API server: late request", func() {
			fault := <-done
			slog.WarnContext(r.Context(), "a request went on after its time", "method", r.Method, "path", r.URL.Path, "for", time.Since(began), "panic", fault)
		})
		t.end(late, r)
	}
}

// A timedWriter passes on an answer until its time is over.
type timedWriter struct {
	w      http.ResponseWriter
	header http.Header // the handler's; w's is not touched before the answer begins

	mu          sync.Mutex
	wrote, over bool
}

func (t *timedWriter) Header() http.Header { return t.header }

// begin is to be called with the lock held.
func (t *timedWriter) begin() error {
	if t.over {
		return http.ErrHandlerTimeout
	}
	if !t.wrote {
		t.wrote = true
		maps.Copy(t.w.Header(), t.header)
	}
	return nil
}

func (t *timedWriter) WriteHeader(code int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.wrote && t.begin() == nil {
		t.w.WriteHeader(code)
	}
}

func (t *timedWriter) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.begin(); err != nil {
		return 0, err
	}
	return t.w.Write(b)
}

// FlushError, and what follows, is what http.NewResponseController looks for.
func (t *timedWriter) FlushError() error {
	return t.control(func(c *http.ResponseController) error {
		if err := t.begin(); err != nil {
			return err
		}
		return c.Flush()
	})
}

func (t *timedWriter) Flush() { _ = t.FlushError() }

func (t *timedWriter) SetReadDeadline(at time.Time) error {
	return t.control(func(c *http.ResponseController) error { return c.SetReadDeadline(at) })
}

func (t *timedWriter) SetWriteDeadline(at time.Time) error {
	return t.control(func(c *http.ResponseController) error { return c.SetWriteDeadline(at) })
}

func (t *timedWriter) control(do func(*http.ResponseController) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return http.ErrHandlerTimeout
	}
	return do(http.NewResponseController(t.w))
}

// end has late answer in the handler's place; an answer that has begun is broken off.
func (t *timedWriter) end(late http.HandlerFunc, r *http.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	if t.wrote {
		panic(http.ErrAbortHandler)
	}
	late(t.w, r)
}
