// Package memnet is an in-memory network: a listener whose connections are made by
// its own Dial, and a loopback for requests that need no connection. It opens no socket.
package memnet

import (
	"context"
	"net"
	"sync"
)

// A Listener hands the far ends of dialled connections to Accept.
type Listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// Listen returns a listener ready to be dialled.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept waits for the next dialled connection; net.ErrClosed after Close.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and later dials; open connections stay.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr names the listener; it has no network address.
func (l *Listener) Addr() net.Addr { return addr{} }

// Dial connects to the listener, whatever network and address say, so that it
// fits rest.Config.Dial.
func (l *Listener) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return l.DialAs(ctx, nil)
}

// DialAs connects as Dial does; the accepted connection carries identity, which
// Identity gives back.
func (l *Listener) DialAs(ctx context.Context, identity any) (net.Conn, error) {
	near, far := newPipe()
	select {
	case l.conns <- &conn{far, identity}:
		return near, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Identity is what DialAs was given for the accepted connection c, or nil.
func Identity(c net.Conn) any {
	if c, ok := c.(*conn); ok {
		return c.identity
	}
	return nil
}

type conn struct {
	net.Conn
	identity any
}

type addr struct{}

func (addr) Network() string { return "mem" }
func (addr) String() string  { return "127.0.0.1:0" }
