package listener

import (
	"bufio"
	"net"
	"net/netip"
	"time"

	"knarr/addons/gateway/proxyprotocol"
)

// ProxyHeaders says whose connections begin with a PROXY header.
type ProxyHeaders struct{ From []netip.Prefix }

// read takes the PROXY header off a connection of a trusted proxy, and gives it the
// address that the header names. Other connections are left as they are.
func (p *ProxyHeaders) read(conn net.Conn) (net.Conn, error) {
	peer, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return conn, nil
	}
	trusted := false
	for _, from := range p.From {
		trusted = trusted || from.Contains(peer.Addr().Unmap())
	}
	if !trusted {
		return conn, nil
	}
	_ = conn.SetReadDeadline(time.Now().Add(headerTime))
	buf := bufio.NewReaderSize(conn, proxyprotocol.MaxHeader)
	source, err := proxyprotocol.Read(buf)
	if err != nil {
		return conn, err
	}
	_ = conn.SetReadDeadline(time.Time{})
	led := &peekedConn{Conn: conn, buf: buf}
	if !source.IsValid() {
		return led, nil // a health check of the proxy itself
	}
	led.Conn = &proxiedConn{Conn: conn, from: net.TCPAddrFromAddrPort(source)}
	return led, nil
}

// A proxiedConn is a connection that a proxy opened for somebody else.
type proxiedConn struct {
	net.Conn
	from net.Addr
}

func (c *proxiedConn) RemoteAddr() net.Addr { return c.from }
func (c *proxiedConn) CloseWrite() error    { return closeWrite(c.Conn) }
