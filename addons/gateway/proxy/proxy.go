// Package proxy serves one HTTP request: it finds the rule, applies its filters, asks a
// backend's endpoint and passes the answer on. It reads requests and what backends answer,
// and writes answers and records of them.
package proxy

import (
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"knarr/addons/gateway/backend"
	"knarr/addons/gateway/route"
	"knarr/addons/gateway/tracing"
)

// A Config is what a Proxy is made with. The zero value serves.
type Config struct {
	// Matched is called with the route of a request once it is known; what it returns becomes
	// the Record's Counted. Ended is called with each request that was served, and must not
	// keep the Record.
	Matched func(route string) any
	Ended   func(*Record)
	// Inside are the ranges of pods and Services, which no URL of a tenant leads into.
	Inside []netip.Prefix
	// Tracer makes spans of requests. Default: none.
	Tracer *tracing.Tracer
}

// A Proxy holds what requests of all listeners share: the backends, and what is counted.
type Proxy struct {
	cfg     Config
	auth    http.RoundTripper // asks servers that say who a client is
	reach   atomic.Pointer[reach]
	mirrors atomic.Int32  // copies in flight
	room    atomic.Int64  // for bodies that are held
	hashing chan struct{} // held while a password is hashed, of whichever route

	mu        sync.Mutex
	endpoints map[string][]route.Endpoint // also of backends that no Config names yet
	upstreams map[string]*Upstream
	backends  map[string]route.Backend // that they are of: the Config's
	limiters  map[place]*limiter
	sites     map[string]*Site // of the Config before
}

// New is a Proxy without backends.
func New(cfg Config) *Proxy {
	p := &Proxy{
		cfg:       cfg,
		hashing:   make(chan struct{}, maxHashing),
		endpoints: map[string][]route.Endpoint{},
		upstreams: map[string]*Upstream{},
		limiters:  map[place]*limiter{},
	}
	p.room.Store(maxHeld)
	p.reach.Store(newReach(cfg.Inside, &route.Config{}))
	p.auth = newAuthTransport(func(at netip.AddrPort) error { return p.reach.Load().may(at) })
	return p
}

// An Upstream is a backend and its endpoints.
type Upstream struct {
	Name string
	Spec route.Backend
	Set  *backend.Set
}

// SetEndpoints says where a backend is. It may be known before a Config names it.
func (p *Proxy) SetEndpoints(name string, at []route.Endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(at) == 0 {
		delete(p.endpoints, name)
	} else {
		p.endpoints[name] = at
	}
	if u := p.upstreams[name]; u != nil {
		u.Set.Put(at)
	}
}

// A Compiled is a Config that can be served: the sites by the names of their listeners,
// and the backends by theirs.
type Compiled struct {
	Sites     map[string]*Site
	Upstreams map[string]*Upstream
	// Dropped are the routes that are not served, by their names, and why.
	Dropped map[string]error
	// Release closes what only the Config before used. It is called once the new one serves.
	Release func()
}

// Compile prepares a Config. Backends that are the same as before keep their connections
// and health.
func (p *Proxy) Compile(c *route.Config) *Compiled {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, changed := p.upstreams, p.follow(c.Backends)
	compiler, dropped := &compiler{proxy: p, before: p.sites, changed: changed, tables: map[sameRoutes]*route.Table[*action]{}}, map[string]error{}
	sites := make(map[string]*Site, len(c.Listeners))
	for i := range c.Listeners {
		l := &c.Listeners[i]
		if l.Protocol == route.HTTP || l.Protocol == route.HTTPS {
			sites[l.Name] = compiler.site(l)
			maps.Copy(dropped, sites[l.Name].table.Dropped)
		}
	}
	compiler.sweep()
	p.sites = sites
	p.reach.Store(newReach(p.cfg.Inside, c))
	current := p.upstreams
	return &Compiled{Sites: sites, Upstreams: current, Dropped: dropped, Release: func() {
		for name := range changed {
			if u := old[name]; u != nil && current[name] != u {
				u.Set.Close()
			}
		}
	}}
}

// follow makes the upstreams those of other backends, and says which are not what they were.
// A map of upstreams is not changed any more once it is there.
func (p *Proxy) follow(backends map[string]route.Backend) (changed map[string]bool) {
	if route.Same(p.backends, backends) {
		return nil // it is the very same, and not changed once it was handed over
	}
	p.backends = backends
	old := p.upstreams
	changed = map[string]bool{}
	p.upstreams = maps.Clone(old)
	if p.upstreams == nil {
		p.upstreams = make(map[string]*Upstream, len(backends))
	}
	for name, spec := range backends {
		if u := old[name]; u != nil && sameBackend(&u.Spec, &spec) {
			continue
		}
		u := &Upstream{Name: name, Spec: spec}
		transports := newTransports(&u.Spec)
		u.Set = backend.New(name, func(e *backend.Endpoint) io.Closer { return transports.open(e.Address) })
		u.Set.Put(p.endpoints[name])
		p.upstreams[name], changed[name] = u, true
	}
	if len(p.upstreams) > len(backends) {
		for name := range old {
			if _, there := backends[name]; !there {
				delete(p.upstreams, name)
				delete(p.endpoints, name)
				changed[name] = true
			}
		}
	}
	return changed
}

// Close ends the connections to all backends that no request uses.
func (p *Proxy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.upstreams {
		u.Set.Close()
	}
	p.upstreams, p.backends = nil, nil
}

// A Site is a listener's routes, compiled.
type Site struct {
	Listener *route.Listener
	// http3 are the names that are served by HTTP/3 as well, and alternative says so.
	http3       route.Hosts[bool]
	alternative []string
	challenged  route.Hosts[bool] // whose challenges of ACME are answered
	table       *route.Table[*action]
}

// A Port serves the requests that reach one socket, with the sites of its listeners.
type Port struct {
	proxy *Proxy
	tls   bool
	sites atomic.Pointer[route.Hosts[*Site]]
	// http3 says that HTTP/3 is served at a port of UDP.
	http3 atomic.Bool
}

// ServesHTTP3 says whether clients may be told to ask by HTTP/3.
func (p *Port) ServesHTTP3(yes bool) { p.http3.Store(yes) }

// NewPort is a Port without sites; tls says that connections to it are encrypted.
func (p *Proxy) NewPort(tls bool) *Port {
	port := &Port{proxy: p, tls: tls}
	port.sites.Store(&route.Hosts[*Site]{})
	return port
}

// Set replaces the sites. Of several with the same host name the first one serves.
func (p *Port) Set(sites []*Site) {
	hosts := &route.Hosts[*Site]{}
	for _, s := range sites {
		if _, taken := hosts.Get(s.Listener.Hostname, false); !taken {
			hosts.Set(s.Listener.Hostname, false, s)
		}
	}
	p.sites.Store(hosts)
}

// A Record is what there is to say of a request that was served.
type Record struct {
	Start                          time.Time
	Duration                       time.Duration
	Client                         netip.Addr
	Method, Scheme, Host, Path     string
	Query, Protocol                string
	UserAgent, Referer             string
	Status                         int
	Received, Sent                 int64
	Listener, Route, Rule, Backend string
	Endpoint                       netip.AddrPort // invalid if none was asked
	Attempts                       int
	// Counted is what Matched has returned; nil if no route was found.
	Counted any
	// Span is the request's part of a trace, if there is a Tracer.
	Span tracing.Span
	// NoLog is of rules that are left out of the access log.
	NoLog bool
}

func logPanic(what any) { slog.Error("panic", "goroutine", "gateway request", "panic", what) }
