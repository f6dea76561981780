package http2

import (
	"io"
	"time"
)

// A body is that of a client's request.
type body struct {
	c       *conn
	st      *stream // nil once the request was served
	expects bool    // the client waits for 100 before it sends
}

// Read reads what has arrived, or waits for more.
func (b *body) Read(p []byte) (int, error) {
	c := b.c
	c.mu.Lock()
	st := b.st
	if st == nil || st.closed {
		c.mu.Unlock()
		return 0, errBodyClosed
	}
	if b.expects && len(st.in) == st.from && st.inEnd == nil {
		b.expects = false
		if !st.answer.Sent() { // a few bytes, which need not wait as answers do
			c.appendBlock(st.id, appendStatus(nil, 100), false)
			c.mu.Unlock()
			c.flush()
			c.mu.Lock()
		}
	}
	for st.from == len(st.in) && st.inEnd == nil && !st.closed {
		if st.readSince.IsZero() {
			st.readSince = time.Now()
		}
		st.arrived.Wait()
	}
	st.readSince = time.Time{}
	switch {
	case st.closed:
		c.mu.Unlock()
		return 0, errBodyClosed
	case st.from == len(st.in):
		err := st.inEnd
		if err == io.EOF {
			for name := range st.request.Trailer { // those that the head announced
				st.request.Trailer[name] = st.trailer[name]
			}
		}
		c.mu.Unlock()
		return 0, err
	}
	n := copy(p, st.in[st.from:])
	if st.from += n; st.from == len(st.in) {
		st.in, st.from = st.in[:0], 0
	}
	update := c.consume(st, int64(n))
	c.mu.Unlock()
	if update {
		c.flush()
	}
	return n, nil
}

// Close ends a Read that waits, and gives up what was not read.
func (b *body) Close() error {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	if st := b.st; st != nil && !st.closed {
		st.closed = true
		b.c.consume(st, int64(len(st.in)-st.from))
		st.in, st.from = st.in[:0], 0
		st.arrived.Broadcast()
	}
	return nil
}
