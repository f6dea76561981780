package http1

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

func indexByte(b []byte, c byte) int { return bytes.IndexByte(b, c) }

// bufferSize is how much is read of a connection at once. A head may make it grow.
const bufferSize = 4 << 10

var readBuffers = sync.Pool{New: func() any { return new(make([]byte, bufferSize)) }}

// tick is how far ahead deadlines are set at most, so that who waits looks again whether
// anybody is still interested. Setting one costs as much as all else of a small read, so
// one that is not due yet is left.
const tick = time.Second

// A reader reads a connection by way of a buffer.
type reader struct {
	conn     net.Conn
	holder   *[]byte // from the pool; nil while there is no buffer
	buf      []byte
	from, to int       // what is unread
	deadline time.Time // that the connection has
	limit    time.Time // when the read must end; zero for none
	arrived  time.Time // when the first byte of the head came, zero before
	scanned  int       // how much of the head that has come was looked at
	since    time.Time // when the read that waits, or waited last, began
	waiter   waiter
}

// A waiter is asked at each tick whether a read that began at a time shall go on.
type waiter interface{ wait(since time.Time) error }

func (r *reader) acquire() {
	if r.holder == nil {
		r.holder = readBuffers.Get().(*[]byte)
		r.buf = *r.holder
		r.from, r.to = 0, 0
	}
}

// release gives the buffer back, if nothing is in it.
func (r *reader) release() {
	if r.holder != nil && r.from == r.to {
		readBuffers.Put(r.holder)
		r.holder, r.buf = nil, nil
	}
}

func (r *reader) unread() []byte { return r.buf[r.from:r.to] }

// arm makes sure that a read comes back within a tick.
func (r *reader) arm(now time.Time) {
	left := r.deadline.Sub(now)
	if left >= tick/2 && left <= tick && (r.limit.IsZero() || !r.limit.Before(r.deadline)) {
		return
	}
	r.deadline = now.Add(tick)
	if !r.limit.IsZero() && r.limit.Before(r.deadline) {
		r.deadline = r.limit
	}
	_ = r.conn.SetReadDeadline(r.deadline)
}

// read reads the connection into b, past the buffer.
func (r *reader) read(b []byte) (int, error) {
	r.since = time.Now()
	r.arm(r.since)
	for {
		n, err := r.conn.Read(b)
		if n > 0 || err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := r.again(); err != nil {
			return 0, err
		}
	}
}

// again asks whether a read that has waited for a tick shall go on.
func (r *reader) again() error {
	if err := r.waiter.wait(r.since); err != nil {
		return err
	}
	r.deadline = time.Time{}
	r.arm(time.Now())
	return nil
}

// fill reads more into the buffer, behind what is unread.
func (r *reader) fill() error {
	r.acquire()
	if r.from == r.to {
		r.from, r.to = 0, 0
	}
	if r.to == len(r.buf) {
		if r.from > 0 {
			r.to = copy(r.buf, r.buf[r.from:r.to])
			r.from = 0
		} else {
			if len(r.buf) >= maxHead {
				return errHeadSize
			}
			r.buf = append(r.buf, make([]byte, len(r.buf))...)
		}
	}
	n, err := r.read(r.buf[r.to:])
	r.to += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// next begins another head.
func (r *reader) next() { r.arrived, r.scanned = time.Time{}, 0 }

// head takes a whole head off the connection: its lines, without the empty one. After
// socket.Nothing it can be called again for the rest.
func (r *reader) head() (string, error) {
	for {
		if r.from < r.to {
			if r.arrived.IsZero() {
				r.arrived = time.Now()
			}
			end, next, err := headEnd(r.unread(), r.scanned)
			if err != nil {
				return "", err
			}
			if end > 0 {
				text := string(r.buf[r.from : r.from+end-2])
				r.from += end
				return text, nil
			}
			if r.scanned = next; r.to-r.from >= maxHead {
				return "", errHeadSize
			}
			// Who sends byte by byte keeps no read waiting, but has no more time.
			if err := r.waiter.wait(time.Now()); err != nil {
				return "", err
			}
		}
		if err := r.fill(); err != nil {
			if err == io.EOF && r.from < r.to {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
	}
}
