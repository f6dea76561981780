package mode

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A packet is the first of a connection, as it is on the wire.
type packet struct {
	protocol byte
	from, to netip.AddrPort
}

// A capture holds what arrives by a link.
type capture struct {
	file *os.File
	done chan struct{}
	mu   sync.Mutex
	seen map[packet]bool
}

// captureAt captures what comes by a link of the calling thread's namespace: packets of UDP,
// and the first of each connection of TCP.
func captureAt(t *testing.T, link string) *capture {
	t.Helper()
	l, err := net.InterfaceByName(link)
	if err != nil {
		t.Fatal(err)
	}
	kind := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(kind))
	if err != nil {
		t.Fatal(err)
	}
	c := &capture{file: os.NewFile(uintptr(fd), "capture"), done: make(chan struct{}), seen: map[packet]bool{}}
	t.Cleanup(func() { c.file.Close() })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: kind, Ifindex: l.Index}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		for b := make([]byte, 1<<16); ; {
			n, err := c.file.Read(b)
			if err != nil {
				return // closed
			}
			if p, ok := first(b[:n]); ok {
				c.mu.Lock()
				c.seen[p] = true
				c.mu.Unlock()
			}
		}
	}()
	return c
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
// address, and how many.
func (c *capture) sources(protocol byte, to string) map[string]int {
	c.file.Close()
	<-c.done
	from := map[string]int{}
	for p := range c.seen {
		if p.protocol == protocol && p.to.String() == to {
			from[p.from.Addr().String()]++
		}
	}
	return from
}
