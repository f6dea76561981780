package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"knarr/internal/run"
)

const (
	// maxBatch is how much may wait to be sent on one connection; a frame of
	// 16 KiB may exceed it.
	maxBatch = 128 << 10
	// closeTimeout bounds how long the end of a connection waits for its client.
	closeTimeout = time.Second
	// stallTimeout is how long an HTTP/2 connection whose client takes nothing of what
	// is sent is kept. A client of several streams reads them all the time; what
	// it has no room for yet it says by the windows of streams.
	stallTimeout = time.Minute
)

// A batchingConn sends in one batch what the streams of an HTTP/2 connection wrote
// while the batch before was under way: a server that writes frame by frame
// makes a TLS record or two, a system call and a wake-up of the client for each.
// Watches have one stream each, and a client has all of its on one connection.
type batchingConn struct {
	*tls.Conn
	mu      sync.Mutex
	filled  sync.Cond // pending is not empty, or closed
	emptied sync.Cond // pending is empty again, or the writer has ended
	pending *[]byte   // what is to be sent; nil: nothing
	err     error     // of the batch before
	closed  bool      // no more will be written
	stopped bool      // the writer has
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

func newBatchingConn(c *tls.Conn) *batchingConn {
	b := &batchingConn{Conn: c}
	b.filled.L, b.emptied.L = &b.mu, &b.mu
	if raw, ok := c.NetConn().(*coalescingConn); ok {
		raw.stall = stallTimeout
	}
	run.Go("HTTP/2 writer", b.writeBatches)
	return b
}

// Write takes p to be sent. Its error is that of an earlier one.
func (b *batchingConn) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.pending != nil && len(*b.pending) >= maxBatch && !b.stopped {
		b.emptied.Wait()
	}
	switch {
	case b.err != nil:
		return 0, b.err
	case b.closed || b.stopped:
		return 0, net.ErrClosed
	}
	if b.pending == nil {
		b.pending = buffers.Get().(*[]byte)
		b.filled.Signal()
	}
	*b.pending = append(*b.pending, p...)
	return len(p), nil
}

// writeBatches sends until the connection is over or broken.
func (b *batchingConn) writeBatches() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.err == nil {
		for b.pending == nil && !b.closed {
			b.filled.Wait()
		}
		batch := b.pending
		if batch == nil {
			break
		}
		b.pending = nil
		b.emptied.Broadcast()
		b.mu.Unlock()
		err := run.Catch("HTTP/2 writer", func() error { return b.writeBatch(*batch) })
		*batch = (*batch)[:0]
		buffers.Put(batch)
		b.mu.Lock()
		b.err = err
	}
	b.stopped = true
	b.emptied.Broadcast()
}

// writeBatch encrypts and sends a batch.
func (b *batchingConn) writeBatch(batch []byte) error {
	c, ok := b.Conn.NetConn().(*coalescingConn)
	if !ok || len(batch) <= maxRecord {
		_, err := b.Conn.Write(batch)
		return err
	}
	flush := c.coalesce()
	_, err := b.Conn.Write(batch)
	return errors.Join(err, flush())
}

// Close sends what was written, unless the client does not take it, and closes.
func (b *batchingConn) Close() error {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		b.filled.Signal()
		_ = b.Conn.SetWriteDeadline(time.Now().Add(closeTimeout))
	}
	for !b.stopped {
		b.emptied.Wait()
	}
	b.mu.Unlock()
	return b.Conn.Close()
}

// batchStreams makes srv serve HTTP/2 on connections that batch writes.
func batchStreams(srv *http.Server) error {
	h2 := &http2.Server{}
	base := &http.Server{ // of which golang.org/x/net reads these
		MaxHeaderBytes: maxStreamHeader, WriteTimeout: srv.WriteTimeout, IdleTimeout: srv.IdleTimeout, HTTP2: srv.HTTP2, ErrorLog: srv.ErrorLog,
	}
	if err := http2.ConfigureServer(srv, h2); err != nil {
		return err
	}
	srv.TLSNextProto[http2.NextProtoTLS] = func(_ *http.Server, c *tls.Conn, h http.Handler) {
		var ctx context.Context
		if of, ok := h.(interface{ BaseContext() context.Context }); ok { // net/http hands the connection's context over like this
			ctx = of.BaseContext()
		}
		b := newBatchingConn(c)
		defer b.Close()
		h2.ServeConn(b, &http2.ServeConnOpts{Context: ctx, Handler: h, BaseConfig: base})
	}
	return nil
}
