package listener

import (
	"bufio"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// ProxyHeaders says whose connections begin with a PROXY header.
type ProxyHeaders struct{ From []netip.Prefix }

// maxProxyHeader is the most that a PROXY header may have: version 1 has at most 107
// bytes, version 2 a head of 16 and addresses and further values, of which load balancers send
// some hundred.
const maxProxyHeader = 4 << 10

var errProxyHeader = errors.New("the connection does not begin with a PROXY header")

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
	buf := bufio.NewReaderSize(conn, maxProxyHeader)
	source, err := readProxyHeader(buf)
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

var proxySignature = "\r\n\r\n\x00\r\nQUIT\n"

// readProxyHeader takes a PROXY header of version 1 or 2 and returns the client's
// address, an invalid one if the header names none.
func readProxyHeader(r *bufio.Reader) (source netip.AddrPort, err error) {
	head, err := r.Peek(6)
	if err != nil {
		return source, err
	}
	if string(head) == "PROXY " {
		return readProxyText(r)
	}
	if head, err = r.Peek(16); err != nil {
		return source, err
	}
	if string(head[:12]) != proxySignature || head[12]>>4 != 2 {
		return source, errProxyHeader
	}
	command, family := head[12]&15, head[13]
	length := int(binary.BigEndian.Uint16(head[14:]))
	if command > 1 || 16+length > maxProxyHeader {
		return source, errProxyHeader
	}
	all, err := r.Peek(16 + length)
	if err != nil {
		return source, err
	}
	body := all[16:]
	if command == 1 {
		size := 0
		switch family >> 4 {
		case 1:
			size = 4
		case 2:
			size = 16
		}
		if len(body) < 2*size+4 && size > 0 {
			return source, errProxyHeader
		}
		if a, ok := netip.AddrFromSlice(body[:size]); ok {
			source = netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(body[2*size:]))
		}
	}
	_, err = r.Discard(16 + length)
	return source, err
}

// readProxyText takes a header of version 1: one line of at most 107 bytes.
func readProxyText(r *bufio.Reader) (source netip.AddrPort, err error) {
	const longest = 107
	for n := 8; ; n++ {
		line, err := r.Peek(n)
		if err != nil {
			return source, err
		}
		if line[n-1] != '\n' {
			if n == longest {
				return source, errProxyHeader
			}
			continue
		}
		text, ok := strings.CutSuffix(string(line), "\r\n")
		if !ok {
			return source, errProxyHeader
		}
		if _, err := r.Discard(n); err != nil {
			return source, err
		}
		return parseProxyText(text)
	}
}

func parseProxyText(line string) (source netip.AddrPort, err error) {
	fields := strings.Split(line, " ")
	if len(fields) >= 2 && fields[1] == "UNKNOWN" {
		return source, nil
	}
	if len(fields) != 6 || fields[1] != "TCP4" && fields[1] != "TCP6" {
		return source, errProxyHeader
	}
	from, err := netip.ParseAddr(fields[2])
	to, err2 := netip.ParseAddr(fields[3])
	port, err3 := strconv.ParseUint(fields[4], 10, 16)
	_, err4 := strconv.ParseUint(fields[5], 10, 16)
	if errors.Join(err, err2, err3, err4) != nil || from.Zone() != "" || from.Is4() != (fields[1] == "TCP4") || to.Is4() != from.Is4() {
		return source, errProxyHeader
	}
	return netip.AddrPortFrom(from.Unmap(), uint16(port)), nil
}

// AppendProxyHeader appends the header that tells a backend whom a connection is for.
func AppendProxyHeader(b []byte, version int, from, to netip.AddrPort) []byte {
	source, destination := from.Addr().Unmap(), to.Addr().Unmap()
	if source.Is4() != destination.Is4() {
		source, destination = netip.AddrFrom16(source.As16()), netip.AddrFrom16(destination.As16())
	}
	if version == 1 {
		if !source.IsValid() {
			return append(b, "PROXY UNKNOWN\r\n"...)
		}
		family := "TCP6"
		if source.Is4() {
			family = "TCP4"
		}
		return append(b, "PROXY "+family+" "+source.String()+" "+destination.String()+" "+
			strconv.Itoa(int(from.Port()))+" "+strconv.Itoa(int(to.Port()))+"\r\n"...)
	}
	b = append(b, proxySignature...)
	if !source.IsValid() {
		return append(b, 0x20, 0, 0, 0) // no client: the gateway itself
	}
	family := byte(0x21)
	if source.Is4() {
		family = 0x11
	}
	body := append(source.AsSlice(), destination.AsSlice()...)
	body = binary.BigEndian.AppendUint16(body, from.Port())
	body = binary.BigEndian.AppendUint16(body, to.Port())
	b = append(b, 0x21, family)
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	return append(b, body...)
}
