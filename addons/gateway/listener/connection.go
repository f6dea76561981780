package listener

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"time"

	"knarr/addons/gateway/socket"
)

// handle serves one connection: its PROXY header, then TLS, then HTTP or a stream.
func (p *Port) handle(conn net.Conn, of *place) {
	c := p.content.Load()
	if c.Proxies != nil {
		var err error
		if conn, err = c.Proxies.read(conn); err != nil {
			_ = conn.Close()
			return
		}
	}
	switch {
	case c.Raw != nil:
		p.stream(conn, c.Raw)
	case c.TLS != nil && c.TLS.peeks:
		p.byServerName(conn, c, of)
	case c.TLS != nil:
		p.encrypted(conn, of)
	default:
		conn, beneath := pollable(conn, of)
		p.http.Serve(conn, beneath, nil)
	}
}

// pollable makes the socket of a connection one that can be polled.
func pollable(conn net.Conn, at *place) (same, beneath net.Conn) {
	switch of := conn.(type) {
	case *peekedConn:
		of.Conn, beneath = pollable(of.Conn, at)
		return of, beneath
	case *proxiedConn:
		of.Conn, beneath = pollable(of.Conn, at)
		return of, beneath
	}
	if s := socket.New(conn); s != nil {
		s.Idler = at
		return s, s
	}
	return conn, conn
}

// byServerName looks at who a TLS connection is for before anything of it is answered.
func (p *Port) byServerName(conn net.Conn, c *Content, at *place) {
	_ = conn.SetReadDeadline(time.Now().Add(headerTime))
	peeked := &peekedConn{Conn: conn, buf: bufio.NewReaderSize(conn, maxClientHello)}
	name, err := peekServerName(peeked.buf)
	if err != nil {
		_ = conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	of, found := c.TLS.find(name)
	switch {
	case !found:
		_ = tls.Server(peeked, p.outer).Handshake() // fails, with an alert
		_ = conn.Close()
	case of.passthrough:
		p.stream(peeked, of.streams.find(name))
	case of.streams != nil:
		encrypted := tls.Server(peeked, p.outer)
		_ = conn.SetDeadline(time.Now().Add(headerTime))
		if encrypted.Handshake() != nil {
			_ = conn.Close()
			return
		}
		_ = conn.SetDeadline(time.Time{})
		p.stream(encrypted, of.streams.find(name))
	default:
		p.encrypted(peeked, at)
	}
}

// encrypted ends TLS, and serves HTTP in the version that was agreed on.
func (p *Port) encrypted(conn net.Conn, at *place) {
	conn, beneath := pollable(conn, at)
	c := tls.Server(conn, p.outer)
	ctx, cancel := context.WithTimeout(context.Background(), headerTime)
	err := c.HandshakeContext(ctx)
	cancel()
	if err != nil {
		_ = conn.Close()
		return
	}
	state := c.ConnectionState()
	if state.NegotiatedProtocol == "h2" {
		p.http2.Serve(c, at, &state)
		return
	}
	p.http.Serve(c, beneath, &state)
}

// placeOf is the place of a connection that can be polled.
func placeOf(c net.Conn) *place {
	for {
		switch of := c.(type) {
		case *peekedConn:
			c = of.Conn
		case *proxiedConn:
			c = of.Conn
		case *socket.Conn:
			at, _ := of.Idler.(*place)
			return at
		default:
			return nil
		}
	}
}

// A peekedConn is a connection whose first bytes were looked at.
type peekedConn struct {
	net.Conn
	buf *bufio.Reader // nil once it is empty
}

func (c *peekedConn) Read(b []byte) (int, error) {
	if c.buf == nil {
		return c.Conn.Read(b)
	}
	n := c.buf.Buffered()
	if n == 0 {
		c.buf = nil
		return c.Conn.Read(b)
	}
	return c.buf.Read(b[:min(len(b), n)])
}

// CloseWrite ends the sending side.
func (c *peekedConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}
