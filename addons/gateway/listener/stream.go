package listener

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"knarr/addons/gateway/backend"
	"knarr/addons/gateway/proxyprotocol"
	"knarr/addons/gateway/route"
	"knarr/internal/run"
)

const (
	streamConnectTime = 5 * time.Second
	// streamIdleTime ends a stream on which neither side sends anything.
	streamIdleTime = time.Hour
)

// Streams are the backends that share connections, and their weights.
type Streams struct {
	shares []streamShare
	total  int
}

type streamShare struct {
	set     *backend.Set // nil: the connection is closed
	version int          // of the PROXY header that each connection begins with
	until   int
}

// NewStreams is of a stream's shares; lookup finds a backend's endpoints, and the version of
// its PROXY header.
func NewStreams(of []route.Share, lookup func(name string) (set *backend.Set, proxyHeader int)) *Streams {
	s := &Streams{}
	for _, b := range of {
		if b.Weight <= 0 {
			continue
		}
		s.total += b.Weight
		share := streamShare{until: s.total}
		if !b.Invalid {
			share.set, share.version = lookup(b.Backend)
		}
		s.shares = append(s.shares, share)
	}
	return s
}

// choose takes a share at random by the weights; nil when there is none to lead to.
func (s *Streams) choose() *streamShare {
	if s == nil || s.total == 0 {
		return nil
	}
	n := rand.IntN(s.total)
	for i := range s.shares {
		if n < s.shares[i].until {
			if s.shares[i].set == nil {
				return nil
			}
			return &s.shares[i]
		}
	}
	return nil
}

// NamedStreams are a listener's streams by server name.
type NamedStreams struct{ hosts route.Hosts[*Streams] }

// Add says what serves a server name; the first one stays.
func (n *NamedStreams) Add(host string, s *Streams) {
	if _, taken := n.hosts.Get(host, false); !taken {
		n.hosts.Set(host, false, s)
	}
}

func (n *NamedStreams) find(name string) *Streams {
	if n == nil {
		return nil
	}
	host, _ := route.CleanHost(name)
	s, _ := n.hosts.Find(host)
	return s
}

// stream leads a connection on until both sides have ended it.
func (p *Port) stream(conn net.Conn, s *Streams) {
	defer conn.Close()
	if !p.track(conn) {
		return
	}
	defer p.forget(conn)
	share := s.choose()
	if share == nil {
		return
	}
	back, e := share.dial(conn)
	if e == nil {
		return
	}
	defer e.Done()
	defer back.Close()
	var last atomic.Int64
	var group run.Group
	group.Go("gateway stream", func() { join(back, conn, &last) })
	join(conn, back, &last)
	group.Wait()
}

// dial connects to an endpoint, or another one if the first cannot be reached.
func (s *streamShare) dial(client net.Conn) (net.Conn, *backend.Endpoint) {
	var wish backend.Wish
	for range 3 {
		e := s.set.Pick(wish)
		if e == nil {
			return nil, nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), streamConnectTime)
		back, err := new(net.Dialer).DialContext(ctx, "tcp", e.Address.String())
		cancel()
		if err == nil && s.version > 0 {
			from, _ := netip.ParseAddrPort(client.RemoteAddr().String())
			to, _ := netip.ParseAddrPort(client.LocalAddr().String())
			_, err = back.Write(proxyprotocol.Append(nil, s.version, from, to))
		}
		if err == nil {
			e.Good()
			return back, e
		}
		e.Done()
		s.set.Unreachable(e)
		wish.Not = e
	}
	return nil, nil
}

// join copies one direction. Its end is passed on; a failure ends both.
func join(to, from net.Conn, last *atomic.Int64) {
	_, err := io.Copy(to, &idleReader{from, last})
	if err != nil || closeWrite(to) != nil {
		_ = to.Close()
		_ = from.Close()
	}
}

// An idleReader fails once both directions have been silent for too long.
type idleReader struct {
	net.Conn
	last *atomic.Int64 // when something came, in Unix seconds
}

func (r *idleReader) Read(b []byte) (int, error) {
	for {
		began := time.Now()
		_ = r.SetReadDeadline(began.Add(streamIdleTime))
		n, err := r.Conn.Read(b)
		if n > 0 {
			r.last.Store(time.Now().Unix())
		}
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && r.last.Load() >= began.Unix() {
			continue
		}
		return n, err
	}
}

// track keeps a connection in mind, so that Close can end it; false once Close was called.
func (p *Port) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.open[c] = struct{}{}
	p.streams.Add(1)
	return true
}

func (p *Port) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
	p.streams.Done()
}

// waitStreams waits for the streams to end, and ends them when ctx does.
func (p *Port) waitStreams(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for c := range p.open {
			_ = c.Close()
		}
	})
	defer stop()
	p.streams.Wait()
}
