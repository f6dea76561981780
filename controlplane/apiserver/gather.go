package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

const (
	// gatherMost is how much may wait to be sent on one connection; a frame of
	// 16 KiB may exceed it.
	gatherMost = 128 << 10
	// lastWrite bounds how long the end of a connection waits for its client.
	lastWrite = time.Second
)

// A gathering sends in one piece what the streams of an HTTP/2 connection wrote
// while the piece before was under way: a server that writes frame by frame
// makes a TLS record or two, a system call and a wake-up of the client for each.
// Watches have one stream each, and a client has all of its on one connection.
type gathering struct {
	*tls.Conn
	mu    sync.Mutex
	some  sync.Cond // next is not empty, or over
	room  sync.Cond // next is empty again, or the writer has ended
	next  *[]byte   // what is to be sent; nil: nothing
	err   error     // of the piece before
	over  bool      // no more will be written
	ended bool      // the writer has
}

var pieces = sync.Pool{New: func() any { return new([]byte) }}

func gather(c *tls.Conn) *gathering {
	g := &gathering{Conn: c}
	g.some.L, g.room.L = &g.mu, &g.mu
	go g.send()
	return g
}

// Write takes p to be sent. Its error is that of an earlier one.
func (g *gathering) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.next != nil && len(*g.next) >= gatherMost && !g.ended {
		g.room.Wait()
	}
	switch {
	case g.err != nil:
		return 0, g.err
	case g.over || g.ended:
		return 0, net.ErrClosed
	}
	if g.next == nil {
		g.next = pieces.Get().(*[]byte)
		g.some.Signal()
	}
	*g.next = append(*g.next, p...)
	return len(p), nil
}

// send sends until the connection is over or broken.
func (g *gathering) send() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.err == nil {
		for g.next == nil && !g.over {
			g.some.Wait()
		}
		piece := g.next
		if piece == nil {
			break
		}
		g.next = nil
		g.room.Broadcast()
		g.mu.Unlock()
		err := g.pass(*piece)
		*piece = (*piece)[:0]
		pieces.Put(piece)
		g.mu.Lock()
		g.err = err
	}
	g.ended = true
	g.room.Broadcast()
}

// pass encrypts and sends a piece.
func (g *gathering) pass(piece []byte) error {
	c, ok := g.Conn.NetConn().(*corked)
	if !ok || len(piece) <= oneRecord {
		_, err := g.Conn.Write(piece)
		return err
	}
	send := c.cork()
	_, err := g.Conn.Write(piece)
	return errors.Join(err, send())
}

// Close sends what was written, unless the client does not take it, and closes.
func (g *gathering) Close() error {
	g.mu.Lock()
	if !g.over {
		g.over = true
		g.some.Signal()
		_ = g.Conn.SetWriteDeadline(time.Now().Add(lastWrite))
	}
	for !g.ended {
		g.room.Wait()
	}
	g.mu.Unlock()
	return g.Conn.Close()
}

// gatherStreams makes srv serve HTTP/2 on connections that gather.
func gatherStreams(srv *http.Server) error {
	h2 := &http2.Server{}
	if err := http2.ConfigureServer(srv, h2); err != nil {
		return err
	}
	srv.TLSNextProto[http2.NextProtoTLS] = func(srv *http.Server, c *tls.Conn, h http.Handler) {
		var ctx context.Context
		if of, ok := h.(interface{ BaseContext() context.Context }); ok { // net/http hands the connection's context over like this
			ctx = of.BaseContext()
		}
		g := gather(c)
		defer g.Close()
		h2.ServeConn(g, &http2.ServeConnOpts{Context: ctx, Handler: h, BaseConfig: srv})
	}
	return nil
}
