package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// A requestBody counts what is read of a request's body, bounds it, and can hold a small
// one so that it can be sent again.
type requestBody struct {
	r     *http.Request
	body  io.Reader
	limit int64
	read  atomic.Int64 // bytes
	held  []byte       // the whole body, if isHeld
	whole bool
	used  atomic.Bool // some of it was sent and cannot be sent again
	over  atomic.Bool // the request was served
	bad   atomic.Bool // the client's body broke off or is malformed
	busy  sync.Mutex  // while the client's body is read
}

var errBodyTooLong = errors.New("the body is longer than the route allows")

// noBody is that of all requests without one.
var noBody = &requestBody{whole: true}

func newRequestBody(r *http.Request, limit int64) *requestBody {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return noBody
	}
	return &requestBody{r: r, body: r.Body, limit: limit}
}

// Read reads of the client.
func (b *requestBody) Read(into []byte) (int, error) {
	b.busy.Lock()
	defer b.busy.Unlock()
	if b.over.Load() {
		return 0, errServed
	}
	b.used.Store(true)
	n, err := b.body.Read(into)
	if total := b.read.Add(int64(n)); b.limit > 0 && total > b.limit {
		return n, errBodyTooLong
	}
	if err != nil && err != io.EOF {
		b.bad.Store(true)
	}
	return n, err
}

var errServed = errors.New("the request was served")

// finish makes sure that nobody reads the client's body any more.
func (b *requestBody) finish() {
	if b == noBody {
		return
	}
	b.over.Store(true)
	if !b.busy.TryLock() {
		_ = b.r.Body.Close()
		b.busy.Lock()
	}
	b.busy.Unlock()
}

// Close ends a Read that waits for the client.
func (b *requestBody) Close() error {
	if b.busy.TryLock() {
		b.busy.Unlock()
		return nil // the server closes what it reads
	}
	return b.r.Body.Close()
}

// hold reads the whole body, if it has at most so many bytes. What was read of a longer one
// is put before the rest of it.
func (b *requestBody) hold(most int64) error {
	if b.whole {
		return nil
	}
	if b.r.ContentLength > most {
		return nil
	}
	held, err := io.ReadAll(io.LimitReader(b, most+1))
	if err != nil {
		return err
	}
	if int64(len(held)) <= most {
		b.held, b.whole = held, true
		b.used.Store(false)
		return nil
	}
	b.read.Store(0)
	b.body = io.MultiReader(bytes.NewReader(held), b.body)
	b.used.Store(false)
	return nil
}

// open is the body for one attempt, and its length, -1 if it is not known.
func (b *requestBody) open() (io.ReadCloser, int64) {
	switch {
	case b.whole && len(b.held) == 0:
		return http.NoBody, 0
	case b.whole:
		return io.NopCloser(bytes.NewReader(b.held)), int64(len(b.held))
	}
	return b, b.r.ContentLength
}

// again reports whether open may be called once more.
func (b *requestBody) again() bool { return b.whole || !b.used.Load() }
