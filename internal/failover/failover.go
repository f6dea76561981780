// Package failover connects to whichever of several equal servers answers. It
// reads and writes connections only.
package failover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// A Dialer connects to the server it connected to last, for as long as that one
// answers, else to another.
type Dialer struct {
	mu      sync.Mutex
	servers []string // host:port, in the order they are tried
	open    map[*probed]struct{}
}

// New takes the servers in the order to try them.
func New(servers ...string) *Dialer {
	d := &Dialer{}
	d.Set(servers)
	return d
}

// Set replaces the servers. The order of those that stay is kept.
func (d *Dialer) Set(servers []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.servers = merge(d.servers, servers)
}

// merge is now in the order of before, then what is new. Pure.
func merge(before, now []string) (all []string) {
	for _, list := range [][]string{before, now} {
		for _, s := range list {
			if slices.Contains(now, s) && !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	return all
}

// Servers gives them in the order they are tried.
func (d *Dialer) Servers() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.servers)
}

// move puts a server first, or last.
func (d *Dialer) move(server string, first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := slices.Index(d.servers, server)
	if at < 0 || first && at == 0 {
		return
	}
	rest := slices.Delete(slices.Clone(d.servers), at, at+1)
	if first {
		d.servers = append([]string{server}, rest...)
	} else {
		d.servers = append(rest, server)
	}
}

// Leave closes all connections to the server that was connected to last, and tries it after
// the others: it takes what is said, and does not answer. The only server is not left.
func (d *Dialer) Leave() {
	d.mu.Lock()
	var left []*probed
	if len(d.servers) > 1 {
		for c := range d.open {
			if c.server == d.servers[0] {
				left = append(left, c)
			}
		}
		d.servers = append(slices.Clone(d.servers[1:]), d.servers[0])
	}
	d.mu.Unlock()
	for _, c := range left {
		c.Close()
	}
}

// keep remembers a connection until it is closed.
func (d *Dialer) keep(c *probed) *probed {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open == nil {
		d.open = map[*probed]struct{}{}
	}
	d.open[c] = struct{}{}
	return c
}

func (d *Dialer) forget(c *probed) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, c)
}

const (
	// stagger is the head start of a server over the next.
	stagger = 250 * time.Millisecond
	// answerTimeout is how long a server that took a connection may keep silent,
	// where there are others: the socket of one that was killed still takes
	// connections for its successor.
	answerTimeout = 2 * time.Second
	// unacknowledgedTimeout is how long what was sent may stay unacknowledged on a connection
	// in use, before it counts as broken.
	unacknowledgedTimeout = 5 * time.Second
)

// keepAlive finds out that a server is gone though it did not say so.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3}

// DialContext connects to one of the servers, whatever the address says.
func (d *Dialer) DialContext(ctx context.Context, network, _ string) (net.Conn, error) {
	servers := d.Servers()
	if len(servers) == 0 {
		return nil, errors.New("no server to connect to")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn   net.Conn
		server string
		err    error
	}
	results := make(chan result, len(servers))
	started, finished := 0, 0
	next := func() {
		if started < len(servers) {
			server := servers[started]
			started++
			run.Go("dial a server", func() {
				r := result{server: server}
				r.err = run.Catch("dial a server", func() (err error) { // there is a result of each
					r.conn, err = dialer.DialContext(ctx, network, server)
					return err
				})
				results <- r
			})
		}
	}
	next()
	timer := time.NewTimer(stagger)
	defer timer.Stop()
	var errs []error
	for finished < len(servers) {
		select {
		case <-timer.C:
			next()
			timer.Reset(stagger)
		case r := <-results:
			finished++
			if r.err != nil {
				errs = append(errs, r.err)
				d.move(r.server, false)
				next()
				timer.Reset(stagger)
				continue
			}
			more := started - finished
			run.Go("slower servers", func() {
				for range more {
					if r := <-results; r.conn != nil {
						r.conn.Close()
					}
				}
			})
			d.move(r.server, true)
			return d.keep(&probed{Conn: r.conn, of: d, server: r.server, answered: len(servers) == 1}), nil
		}
	}
	return nil, fmt.Errorf("reach a server: %w", errors.Join(errs...))
}

var dialer = net.Dialer{
	Timeout: 10 * time.Second, KeepAliveConfig: keepAlive,
	Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledgedTimeout.Milliseconds()))
		})
	},
}

// probed is a connection that is closed if the first thing said on it is not
// answered in time.
type probed struct {
	net.Conn
	of     *Dialer
	server string

	mu       sync.Mutex
	timer    *time.Timer
	answered bool // or nobody else could
}

func (p *probed) Write(b []byte) (int, error) {
	p.mu.Lock()
	if p.timer == nil && !p.answered {
		p.timer = run.AfterFunc("probe a server", answerTimeout, func() {
			p.of.move(p.server, false)
			p.of.forget(p)
			p.Conn.Close()
		})
	}
	p.mu.Unlock()
	return p.Conn.Write(b)
}

func (p *probed) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if n > 0 {
		p.settle()
	}
	return n, err
}

func (p *probed) Close() error {
	p.settle()
	p.of.forget(p)
	return p.Conn.Close()
}

// settle ends the wait for an answer.
func (p *probed) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answered {
		return
	}
	p.answered = true
	if p.timer != nil {
		p.timer.Stop()
	}
}
