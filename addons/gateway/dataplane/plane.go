// Package dataplane is the gateway's data plane as a whole: it listens as a Config says,
// serves it by the proxy and the listeners' streams, and swaps one Config for the next
// without losing connections. It reads Configs and endpoints, and writes metrics and an access log.
package dataplane

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"knarr/addons/gateway/listener"
	"knarr/addons/gateway/proxy"
	"knarr/addons/gateway/route"
	"knarr/addons/gateway/tracing"
	"knarr/internal/run"
)

// Options are what a Plane is made with. The zero value serves.
type Options struct {
	// Listen and ListenPacket open sockets. Default: net's.
	Listen       func(network, address string) (net.Listener, error)
	ListenPacket func(network, address string) (net.PacketConn, error)
	// Inside are the ranges of pods and Services: no URL of a tenant leads to an address there.
	Inside []netip.Prefix
	// AccessLog gets a line for each request. Default: no log.
	AccessLog io.Writer
	// AccessFormat is "json" or "common". Default "json".
	AccessFormat string
	// Tracer makes spans of requests. Default: none.
	Tracer *tracing.Tracer
	// Metrics gets the plane's collector. Default: nothing is counted.
	Metrics prometheus.Registerer
	// ResetKey, if it is the one of the process before, ends connections of HTTP/3 that
	// clients have with that. Default: they wait until they give up.
	ResetKey *[32]byte
	// DrainTimeout is how long requests may take to end once their listener goes, or the
	// plane. Default 20s.
	DrainTimeout time.Duration
}

// A Plane serves one node's Config. Its methods may be called at once, also before Run.
type Plane struct {
	options Options
	proxy   *proxy.Proxy
	stats   *stats

	mu      sync.Mutex
	ports   map[portKey]*port
	ended   bool
	closing run.Group
}

// A portKey is a socket.
type portKey struct {
	address listener.Address
	udp     bool
}

// A port is a socket that is open.
type port struct {
	tcp  *listener.Port
	udp  *listener.Datagrams
	http map[bool]*proxy.Port // by whether it is encrypted
	// http3 is the port of UDP where HTTP/3 is served as well; 0 if it is not.
	http3 uint16
}

// New starts nothing: while its Config is empty a Plane has no goroutine and no socket.
func New(o Options) *Plane {
	if o.Listen == nil {
		o.Listen = net.Listen
	}
	if o.ListenPacket == nil {
		o.ListenPacket = net.ListenPacket
	}
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 20*time.Second)
	p := &Plane{options: o, ports: map[portKey]*port{}, stats: newStats()}
	p.stats.log, p.stats.tracer = newAccessLog(o.AccessLog, o.AccessFormat), o.Tracer
	p.proxy = proxy.New(proxy.Config{Matched: p.stats.matched, Ended: p.stats.ended, Inside: o.Inside, Tracer: o.Tracer})
	if o.Metrics != nil {
		o.Metrics.MustRegister(p.stats)
	}
	return p
}

// Run serves until ctx ends; then no connections are taken any more, and the requests in
// flight have DrainTimeout to end.
func (p *Plane) Run(ctx context.Context) error {
	reporting, stop := context.WithCancel(context.WithoutCancel(ctx)) // until the last request
	var group run.Group
	defer group.Wait()
	defer stop()
	if p.stats.log != nil {
		group.Loop(reporting, "gateway: access log", p.stats.log.run)
	}
	if p.stats.tracer != nil {
		group.Loop(reporting, "gateway: traces", p.stats.tracer.Run)
	}
	<-ctx.Done()
	p.mu.Lock()
	p.ended = true
	for key, open := range p.ports {
		p.close(key, open)
	}
	p.mu.Unlock()
	p.closing.Wait()
	p.proxy.Close()
	return nil
}

// SetEndpoints says where a backend is. It may be known before a Config names it; none
// forgets it.
func (p *Plane) SetEndpoints(name string, at []route.Endpoint) { p.proxy.SetEndpoints(name, at) }

// Apply serves another Config in place of the one before. The result has each listener's
// name, with an error for those that are not served, and the names of the routes that are
// left out because they cannot be compiled. What did not change keeps its
// sockets, connections and backends' health.
func (p *Plane) Apply(c *route.Config) map[string]error {
	p.mu.Lock()
	defer p.mu.Unlock()
	results := make(map[string]error, len(c.Listeners))
	if p.ended {
		for i := range c.Listeners {
			results[c.Listeners[i].Name] = net.ErrClosed
		}
		return results
	}
	compiled := p.proxy.Compile(c)
	wanted := group(c, results)
	for _, key := range slices.SortedFunc(maps.Keys(wanted), compareKeys) {
		w := wanted[key]
		open := p.ports[key]
		if open == nil {
			var err error
			if open, err = p.open(key, w, compiled); err != nil {
				for _, l := range w.listeners {
					results[l.Name] = err
				}
				continue
			}
			p.ports[key] = open
			continue
		}
		p.set(open, w, compiled)
	}
	p.serveHTTP3(wanted, results)
	for key, open := range p.ports {
		if wanted[key] == nil {
			p.close(key, open)
		}
	}
	maps.Copy(results, compiled.Dropped)
	p.stats.keep(c)
	compiled.Release()
	return results
}

// close lets a port's requests end, apart from the caller.
func (p *Plane) close(key portKey, open *port) {
	delete(p.ports, key)
	if open.udp != nil {
		open.udp.Close()
		return
	}
	open.tcp.Stop()
	p.closing.Go("gateway: close a port", func() {
		ctx, cancel := context.WithTimeout(context.Background(), p.options.DrainTimeout)
		defer cancel()
		open.tcp.Close(ctx)
	})
}

func compareKeys(a, b portKey) int {
	return cmp.Or(a.address.Addr.Compare(b.address.Addr), cmp.Compare(a.address.Port, b.address.Port))
}

// A wantedPort is what is to be served at one socket.
type wantedPort struct {
	protocol  route.Protocol // of the first listener: HTTP, HTTPS for all of TLS, TCP or UDP
	listeners []*route.Listener
}

// group finds out which sockets the listeners need. Those that cannot share one get an
// error; the first one serves.
func group(c *route.Config, results map[string]error) map[portKey]*wantedPort {
	wanted := map[portKey]*wantedPort{}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		if _, twice := results[l.Name]; twice {
			results[l.Name] = fmt.Errorf("listener %q is there twice", l.Name)
			continue
		}
		results[l.Name] = nil
		protocol := l.Protocol
		if protocol == route.TLS {
			protocol = route.HTTPS
		}
		addresses := l.Addresses
		if len(addresses) == 0 {
			addresses = []netip.Addr{{}}
		}
		for _, a := range addresses {
			key := portKey{listener.Address{Addr: a.Unmap(), Port: l.Port}, l.Protocol == route.UDP}
			w := wanted[key]
			if w == nil {
				w = &wantedPort{protocol: protocol}
				wanted[key] = w
			}
			if err := w.shares(l, protocol); err != nil {
				results[l.Name] = err
				continue
			}
			w.listeners = append(w.listeners, l)
		}
	}
	return wanted
}

// shares reports why a listener cannot be served beside those that have the port.
func (w *wantedPort) shares(l *route.Listener, protocol route.Protocol) error {
	switch {
	case protocol != w.protocol:
		return fmt.Errorf("port %d is used by listener %q of protocol %s", l.Port, w.listeners[0].Name, w.listeners[0].Protocol)
	case (protocol == route.TCP || protocol == route.UDP) && len(w.listeners) > 0:
		return fmt.Errorf("port %d is used by listener %q", l.Port, w.listeners[0].Name)
	}
	for _, other := range w.listeners {
		if other.Hostname == l.Hostname {
			return fmt.Errorf("port %d and host name %q are used by listener %q", l.Port, l.Hostname, other.Name)
		}
	}
	return nil
}
