package dns

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batchSize is how many queries one system call reads at most, if so many are there,
	// and one sends the answers to.
	batchSize = 16
	// maxMessage is the largest query that is read whole. Longer ones have more than a
	// question and options, and are refused.
	maxMessage = 4096
)

// messageHeader is the kernel's struct mmsghdr.
type messageHeader struct {
	unix.Msghdr
	length uint32
}

// A datagram is a query of a batch, and the room of its answer.
type datagram struct {
	from    [unix.SizeofSockaddrInet6]byte // the client's address, as the kernel has it
	fromLen uint32
	query   [maxMessage]byte
	n       int // of query
	room    []byte
	answer  []byte // in room; none: nothing is sent
}

// A batch reads queries of a socket and sends their answers, many by one system call.
// It allocates nothing after it is made. It is one goroutine's.
type batch struct {
	socket    syscall.RawConn
	datagrams [batchSize]datagram
	headers   [batchSize]messageHeader
	vectors   [batchSize]unix.Iovec

	receive, transmit func(fd uintptr) bool // made once
	ready             int                   // headers that are to be sent
	n                 int
	errno             syscall.Errno
}

func newBatch(socket *net.UDPConn) (*batch, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := &batch{socket: raw}
	for i := range b.datagrams {
		b.datagrams[i].room = make([]byte, 0, maxAnswer+optSize)
	}
	b.receive = func(fd uintptr) bool { return b.call(unix.SYS_RECVMMSG, fd, batchSize) }
	b.transmit = func(fd uintptr) bool { return b.call(unix.SYS_SENDMMSG, fd, b.ready) }
	return b, nil
}

// call has the kernel work on the first of the headers; false: it would have to wait.
func (b *batch) call(number, fd uintptr, headers int) bool {
	for {
		n, _, errno := syscall.Syscall6(number, fd, uintptr(unsafe.Pointer(&b.headers[0])), uintptr(headers), unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		b.n, b.errno = int(n), errno
		return errno != unix.EAGAIN
	}
}

// set has a header lead to a datagram's address and to bytes.
func (b *batch) set(i int, d *datagram, data []byte, addressLen uint32) {
	v := &b.vectors[i]
	v.Base = &data[0]
	v.SetLen(len(data))
	h := &b.headers[i]
	*h = messageHeader{}
	h.Name, h.Namelen, h.Iov = &d.from[0], addressLen, v
	h.SetIovlen(1)
}

// read waits for queries, and gives those that are there. An error that is no
// net.ErrClosed may be of one datagram alone.
func (b *batch) read() ([]datagram, error) {
	for i := range b.datagrams {
		d := &b.datagrams[i]
		b.set(i, d, d.query[:], uint32(len(d.from)))
	}
	if err := b.socket.Read(b.receive); err != nil {
		return nil, err
	}
	if b.errno != 0 {
		return nil, os.NewSyscallError("recvmmsg", b.errno)
	}
	got := b.datagrams[:b.n]
	for i := range got {
		got[i].n, got[i].fromLen, got[i].answer = int(b.headers[i].length), b.headers[i].Namelen, nil
	}
	return got, nil
}

// send sends the answers. One that the kernel does not take is left out: its client
// asks again.
func (b *batch) send(all []datagram) error {
	b.ready = 0
	for i := range all {
		if d := &all[i]; len(d.answer) > 0 {
			b.set(b.ready, d, d.answer, d.fromLen)
			b.ready++
		}
	}
	for b.ready > 0 {
		if err := b.socket.Write(b.transmit); err != nil {
			return err
		}
		done := max(b.n, 1)
		if b.errno != 0 {
			done = 1
		}
		copy(b.headers[:], b.headers[done:b.ready])
		b.ready -= done
	}
	return nil
}

// client is who sent a query.
func (d *datagram) client() netip.AddrPort {
	port := binary.BigEndian.Uint16(d.from[2:])
	if d.fromLen == unix.SizeofSockaddrInet4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(d.from[4:8])), port)
	}
	a := netip.AddrFrom16([16]byte(d.from[8:24]))
	if scope := binary.NativeEndian.Uint32(d.from[24:]); scope != 0 {
		a = a.WithZone(strconv.Itoa(int(scope)))
	}
	return netip.AddrPortFrom(a, port)
}
