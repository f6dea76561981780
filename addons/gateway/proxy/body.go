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

	room     *atomic.Int64 // what is left of maxHeld
	reserved int64         // of room
	users    atomic.Int32  // of what is held, beside the request itself
}

const (
	// maxHeld bounds the bodies that are held, those of all requests together.
	maxHeld = 64 << 20
	// smallBody is how long one may be to be read before an endpoint is asked, so that no slow
	// client has a connection to it. Such bodies are not counted: a connection has buffers
	// of that size anyway.
	smallBody = 16 << 10
)

var (
	errBodyTooLong = errors.New("the body is longer than the route allows")
	errNoRoom      = errors.New("the bodies of other requests take all the room that there is")
)

// noBody is that of all requests without one.
var noBody = &requestBody{whole: true}

func newRequestBody(r *http.Request, limit int64, room *atomic.Int64) *requestBody {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return noBody
	}
	return &requestBody{r: r, body: r.Body, limit: limit, room: room}
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
	b.release()
}

// retain keeps what is held counted until release is called once more: a copy of the request
// may last longer than it.
func (b *requestBody) retain() {
	if b != noBody {
		b.users.Add(1)
	}
}

// release gives the room back once nobody needs it.
func (b *requestBody) release() {
	if b != noBody && b.users.Add(-1) < 0 {
		b.room.Add(b.reserved)
	}
}

// reserve takes room for so many bytes in all.
func (b *requestBody) reserve(size int64) bool {
	if size <= smallBody || size <= b.reserved {
		return true
	}
	more := size - b.reserved
	if b.room.Add(-more) < 0 {
		b.room.Add(more)
		return false
	}
	b.reserved = size
	return true
}

// Close ends a Read that waits for the client.
func (b *requestBody) Close() error {
	if b.busy.TryLock() {
		b.busy.Unlock()
		return nil // the server closes what it reads
	}
	return b.r.Body.Close()
}

// hold reads the whole body, if it has at most so many bytes. What was read of a longer one,
// or of one for which there is no room, is put before the rest of it.
func (b *requestBody) hold(most int64) error {
	if b.whole || b.r.ContentLength > most {
		return nil
	}
	size := min(b.r.ContentLength, most)
	if size < 0 {
		size = min(smallBody, most)
	}
	var held []byte
	for {
		if !b.reserve(size) {
			b.putBack(held)
			return errNoRoom
		}
		held = append(make([]byte, 0, size), held...)
		n, err := io.ReadFull(b, held[len(held):size])
		held = held[:len(held)+n]
		if err == nil { // as long as was thought; it may be at its end
			var next [1]byte
			n, err = io.ReadFull(b, next[:])
			held = append(held, next[:n]...)
		}
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			b.held, b.whole = held, true
			b.used.Store(false)
			return nil
		case err != nil:
			return err
		case int64(len(held)) > most:
			b.putBack(held)
			return nil
		}
		size = max(min(2*size, most), int64(len(held)))
	}
}

// putBack makes the rest of a body the whole of it again.
func (b *requestBody) putBack(held []byte) {
	b.read.Store(0)
	b.body = io.MultiReader(bytes.NewReader(held), b.body)
	b.used.Store(false)
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
