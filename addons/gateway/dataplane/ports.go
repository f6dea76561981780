package dataplane

import (
	"net/netip"
	"slices"

	"knarr/addons/gateway/backend"
	"knarr/addons/gateway/listener"
	"knarr/addons/gateway/proxy"
	"knarr/addons/gateway/route"
)

// open begins to serve at a socket.
func (p *Plane) open(key portKey, w *wantedPort, compiled *proxy.Compiled) (*port, error) {
	address := key.address.String()
	if key.udp {
		socket, err := p.options.ListenPacket("udp", address)
		if err != nil {
			return nil, err
		}
		return &port{udp: listener.OpenDatagrams(socket, datagramsOf(w, compiled))}, nil
	}
	socket, err := p.options.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	opened := &port{http: map[bool]*proxy.Port{}}
	opened.tcp = listener.Open(socket, p.contentOf(opened, w, compiled))
	return opened, nil
}

// set replaces what an open port serves.
func (p *Plane) set(open *port, w *wantedPort, compiled *proxy.Compiled) {
	if open.udp != nil {
		open.udp.Set(datagramsOf(w, compiled))
		return
	}
	open.tcp.Set(p.contentOf(open, w, compiled))
}

func (p *Plane) contentOf(of *port, w *wantedPort, compiled *proxy.Compiled) *listener.Content {
	content := &listener.Content{Proxies: proxiesOf(w)}
	switch w.protocol {
	case route.TCP:
		content.Raw = streamsOf(w.listeners[0].Streams, compiled)
		return content
	case route.HTTPS:
		named := map[string]*listener.NamedStreams{}
		for _, l := range w.listeners {
			if l.Protocol == route.TLS {
				named[l.Name] = namedStreams(l, compiled)
			}
		}
		content.TLS = listener.NewServerNames(w.listeners, named, of.tcp)
	}
	encrypted := w.protocol == route.HTTPS
	handler := of.http[encrypted]
	if handler == nil {
		handler = p.proxy.NewPort(encrypted)
		of.http[encrypted] = handler
	}
	var sites []*proxy.Site
	for _, l := range w.listeners {
		if s := compiled.Sites[l.Name]; s != nil {
			sites = append(sites, s)
		}
	}
	handler.Set(sites)
	content.Handler = handler
	return content
}

// proxiesOf are the peers whose connections begin with a PROXY header.
func proxiesOf(w *wantedPort) *listener.ProxyHeaders {
	var from []netip.Prefix
	for _, l := range w.listeners {
		if l.ProxyProtocol {
			from = append(from, l.TrustedProxies...)
		}
	}
	if len(from) == 0 {
		return nil
	}
	return &listener.ProxyHeaders{From: from}
}

// lookup finds the endpoints that streams lead to.
func lookup(compiled *proxy.Compiled) func(string) (*backend.Set, int) {
	return func(name string) (*backend.Set, int) {
		u := compiled.Upstreams[name]
		if u == nil {
			return nil, 0
		}
		return u.Set, u.Spec.ProxyProtocol
	}
}

// streamsOf is the oldest of the streams of a port that names no hosts.
func streamsOf(all []route.Stream, compiled *proxy.Compiled) *listener.Streams {
	if len(all) == 0 {
		return listener.NewStreams(nil, nil)
	}
	return listener.NewStreams(slices.MinFunc(all, older).Backends, lookup(compiled))
}

func older(a, b route.Stream) int {
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	if a.Name < b.Name {
		return -1
	}
	return 1
}

func namedStreams(l *route.Listener, compiled *proxy.Compiled) *listener.NamedStreams {
	named := &listener.NamedStreams{}
	ordered := slices.Clone(l.Streams)
	slices.SortStableFunc(ordered, older)
	for _, s := range ordered {
		streams := listener.NewStreams(s.Backends, lookup(compiled))
		for _, h := range s.Hosts {
			named.Add(h, streams)
		}
		if len(s.Hosts) == 0 {
			named.Add("", streams)
		}
	}
	return named
}

func datagramsOf(w *wantedPort, compiled *proxy.Compiled) *listener.Streams {
	return streamsOf(w.listeners[0].Streams, compiled)
}
