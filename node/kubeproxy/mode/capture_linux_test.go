package mode

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A packet is the first of a connection, as it is on the wire.
type packet struct {
	protocol byte
	from, to netip.AddrPort
}

// A capture is a socket that holds what arrives by a link.
type capture struct {
	t  *testing.T
	fd int
}

// captureAt captures what comes by a link of the calling thread's namespace.
func captureAt(t *testing.T, link string) *capture {
	t.Helper()
	l, err := net.InterfaceByName(link)
	if err != nil {
		t.Fatal(err)
	}
	kind := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(kind))
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20), // until it is read
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: kind, Ifindex: l.Index}))
	if err != nil {
		t.Fatal(errors.Join(err, unix.Close(fd)))
	}
	return &capture{t, fd}
}

// first reads an IPv4 packet that begins something.
func first(b []byte) (p packet, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return p, false
	}
	h := int(b[0]&15) * 4
	p.protocol = b[9]
	switch {
	case p.protocol == unix.IPPROTO_UDP && len(b) >= h+8:
	case p.protocol == unix.IPPROTO_TCP && len(b) >= h+20 && b[h+13]&0x12 == 0x02: // SYN without ACK
	default:
		return p, false
	}
	addr := func(at int) netip.Addr { return netip.AddrFrom4([4]byte(b[at : at+4])) }
	p.from = netip.AddrPortFrom(addr(12), binary.BigEndian.Uint16(b[h:]))
	p.to = netip.AddrPortFrom(addr(16), binary.BigEndian.Uint16(b[h+2:]))
	return p, true
}

// sources ends the capture, and says from which addresses packets of a protocol came for an
// address, and how many: of UDP all, of TCP those that begin a connection.
func (c *capture) sources(protocol byte, to string) map[string]int {
	c.t.Helper()
	defer unix.Close(c.fd)
	from := map[string]int{}
	for b := make([]byte, 1<<16); ; {
		n, _, err := unix.Recvfrom(c.fd, b, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return from
		}
		if err != nil {
			c.t.Fatal(err)
		}
		if p, ok := first(b[:n]); ok && p.protocol == protocol && p.to.String() == to {
			from[p.from.Addr().String()]++
		}
	}
}
