package memnet

import (
	"io"
	"net"
	"os"
	"sync"
	"time"

	"knarr/internal/run"
)

// chunk bounds what a pipe buffers in one direction, bytes.
const chunk = 256 << 10

// newPipe returns both ends of a buffered full-duplex pipe. net.Pipe would make
// every write wait for its read, two goroutine switches for each; here a
// writer only waits when the buffer is full.
func newPipe() (net.Conn, net.Conn) {
	a, b := newQueue(), newQueue()
	return &end{in: a, out: b}, &end{in: b, out: a}
}

type end struct{ in, out *queue }

func (e *end) Read(p []byte) (int, error)         { return e.in.read(p) }
func (e *end) Write(p []byte) (int, error)        { return e.out.write(p) }
func (e *end) LocalAddr() net.Addr                { return addr{} }
func (e *end) RemoteAddr() net.Addr               { return addr{} }
func (e *end) SetReadDeadline(t time.Time) error  { e.in.rd.set(t); return nil }
func (e *end) SetWriteDeadline(t time.Time) error { e.out.wd.set(t); return nil }
func (e *end) SetDeadline(t time.Time) error {
	e.in.rd.set(t)
	e.out.wd.set(t)
	return nil
}
func (e *end) Close() error {
	e.in.shut()
	e.out.shut()
	return nil
}

// queue is one direction of a pipe.
type queue struct {
	mu     sync.Mutex
	cond   *sync.Cond
	buf    []byte
	off    int
	closed bool
	rd, wd deadline
}

func newQueue() *queue {
	q := &queue{}
	q.cond = sync.NewCond(&q.mu)
	q.rd.q, q.wd.q = q, q
	return q
}

func (q *queue) read(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.off == len(q.buf) {
		switch {
		case q.closed:
			return 0, io.EOF
		case q.rd.passed:
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		}
		q.cond.Wait()
	}
	n := copy(p, q.buf[q.off:])
	q.off += n
	if q.off == len(q.buf) {
		q.off, q.buf = 0, q.buf[:0]
		if cap(q.buf) > chunk/4 {
			q.buf = nil // an idle connection keeps no large buffer
		}
	}
	q.cond.Broadcast()
	return n, nil
}

func (q *queue) write(p []byte) (n int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(p) > 0 {
		room := chunk - (len(q.buf) - q.off)
		switch {
		case q.closed:
			return n, io.ErrClosedPipe
		case q.wd.passed:
			return n, os.ErrDeadlineExceeded
		case room <= 0:
			q.cond.Wait()
			continue
		}
		if q.off > 0 && len(q.buf)+min(room, len(p)) > cap(q.buf) {
			q.buf = q.buf[:copy(q.buf, q.buf[q.off:])]
			q.off = 0
		}
		k := min(room, len(p))
		q.buf = append(q.buf, p[:k]...)
		p, n = p[k:], n+k
		q.cond.Broadcast()
	}
	return n, nil
}

func (q *queue) shut() {
	q.mu.Lock()
	q.closed = true
	q.rd.stop()
	q.wd.stop()
	q.cond.Broadcast()
	q.mu.Unlock()
}

// deadline wakes its queue when a moment has passed. Its queue's lock guards it.
type deadline struct {
	q      *queue
	timer  *time.Timer
	passed bool
}

func (d *deadline) set(t time.Time) {
	d.q.mu.Lock()
	defer d.q.mu.Unlock()
	d.stop()
	d.passed = false
	if t.IsZero() || d.q.closed {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.passed = true
		d.q.cond.Broadcast()
		return
	}
	var mine *time.Timer
	mine = run.AfterFunc("in-memory connection: deadline", left, func() {
		d.q.mu.Lock()
		defer d.q.mu.Unlock()
		if d.timer == mine {
			d.passed = true
			d.q.cond.Broadcast()
		}
	})
	d.timer = mine
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
