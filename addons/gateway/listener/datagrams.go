package listener

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"knarr/addons/gateway/backend"
	"knarr/internal/run"
)

const (
	// maxSessions is how many clients of one UDP port are led at once. More are not
	// answered until others have been silent for sessionIdleTime.
	maxSessions     = 4096
	sessionIdleTime = time.Minute
	maxDatagram     = 64 << 10
)

// Datagrams leads the datagrams of each client to one endpoint, and the answers back.
type Datagrams struct {
	conn    net.PacketConn
	streams atomic.Pointer[Streams]
	group   run.Group

	mu       sync.Mutex
	closed   bool
	sessions map[netip.AddrPort]*session
}

// A session is one client's socket to an endpoint.
type session struct {
	back     net.Conn
	endpoint *backend.Endpoint
	last     atomic.Int64 // when the client sent something, in Unix seconds
}

// OpenDatagrams leads datagrams on until Close.
func OpenDatagrams(conn net.PacketConn, s *Streams) *Datagrams {
	d := &Datagrams{conn: conn, sessions: map[netip.AddrPort]*session{}}
	d.streams.Store(s)
	d.group.Go("gateway datagrams", d.receive)
	return d
}

// Set replaces the backends. Sessions go on with their endpoints while these are silent no
// longer than sessionIdleTime.
func (d *Datagrams) Set(s *Streams) { d.streams.Store(s) }

// Close ends the port and its sessions.
func (d *Datagrams) Close() {
	_ = d.conn.Close()
	d.mu.Lock()
	d.closed = true
	for _, s := range d.sessions {
		_ = s.back.Close()
	}
	d.mu.Unlock()
	d.group.Wait()
}

func (d *Datagrams) receive() {
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := d.conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptBackoff)
			continue
		}
		client, err := netip.ParseAddrPort(from.String())
		if err != nil {
			continue
		}
		if s := d.session(client, from); s != nil {
			s.last.Store(time.Now().Unix())
			_, _ = s.back.Write(buf[:n])
		}
	}
}

// session is the client's, a new one if it has none; nil if there is no endpoint or too
// many have one.
func (d *Datagrams) session(client netip.AddrPort, from net.Addr) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.sessions[client]; s != nil {
		return s
	}
	share := d.streams.Load().choose()
	if share == nil || d.closed || len(d.sessions) >= maxSessions {
		return nil
	}
	e := share.set.Pick(backend.Wish{})
	if e == nil {
		return nil
	}
	back, err := new(net.Dialer).DialContext(context.Background(), "udp", e.Address.String())
	if err != nil {
		e.Done()
		return nil
	}
	s := &session{back: back, endpoint: e}
	d.sessions[client] = s
	d.group.Go("gateway UDP session", func() { d.answers(s, client, from) })
	return s
}

// answers leads an endpoint's datagrams back until the session is idle.
func (d *Datagrams) answers(s *session, client netip.AddrPort, from net.Addr) {
	defer s.endpoint.Done()
	defer s.back.Close()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.sessions, client)
	}()
	raw, err := s.back.(syscall.Conn).SyscallConn()
	if err != nil {
		return
	}
	for {
		_ = s.back.SetReadDeadline(time.Now().Add(sessionIdleTime))
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			// A buffer is only needed while there is something to read.
			buf := datagramBuffers.Get().(*[]byte)
			defer datagramBuffers.Put(buf)
			n, err := unix.Read(int(fd), *buf)
			if err == unix.EAGAIN {
				return false
			}
			if failed = err; err == nil {
				_, _ = d.conn.WriteTo((*buf)[:n], from)
			}
			return true
		})
		switch {
		case failed != nil:
			return // nobody listens there
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Unix()-s.last.Load() < int64(sessionIdleTime/time.Second):
		default:
			return
		}
	}
}

var datagramBuffers = sync.Pool{New: func() any { return new(make([]byte, maxDatagram)) }}
