package listener

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"

	"knarr/addons/gateway/http3"
	"knarr/addons/gateway/route"
	"knarr/internal/connlimit"
)

// http3Names are the configurations of a listener's TLS for HTTP/3, and the names that
// they are for.
type http3Names struct {
	config, asking *tls.Config
	of             [2]*tls.Config // what they were made of
	hosts          route.Hosts[bool]
}

func newHTTP3Names(of *serverName, before *Port) *http3Names {
	l := of.listener
	if l.HTTP3Port == 0 {
		return nil
	}
	n := &http3Names{of: [2]*tls.Config{of.config, of.asking}}
	if old := before.http3NamesOf(l.Hostname); old != nil && old.of == n.of {
		n.config, n.asking = old.config, old.asking // with the keys of session tickets
	} else {
		n.config, n.asking = forHTTP3(of.config), forHTTP3(of.asking)
	}
	for _, h := range l.HTTP3Hosts {
		n.hosts.Set(h, true, true)
	}
	if len(l.HTTP3Hosts) == 0 {
		n.hosts.Set("", false, true)
	}
	return n
}

func forHTTP3(of *tls.Config) *tls.Config {
	if of == nil {
		return nil
	}
	c := of.Clone()
	c.MinVersion, c.NextProtos = tls.VersionTLS13, []string{http3.Protocol}
	return c
}

func (p *Port) http3NamesOf(hostname string) *http3Names {
	if p == nil || p.content.Load().TLS == nil {
		return nil
	}
	old, ok := p.content.Load().TLS.hosts.Get(hostname, false)
	if !ok {
		return nil
	}
	return old.http3
}

// configForHTTP3 is how TLS ends for one client of HTTP/3.
func (p *Port) configForHTTP3(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	names := p.content.Load().TLS
	if names == nil {
		return nil, errNoServer
	}
	of, found := names.find(hello.ServerName)
	host, ok := route.CleanHost(hello.ServerName)
	if !found || !ok || of.http3 == nil {
		return nil, errNoServer
	}
	if served, _ := of.http3.hosts.Find(host); !served {
		return nil, errNoServer
	}
	if asks, _ := of.asks.Find(host); asks {
		return of.http3.asking, nil
	}
	return of.http3.config, nil
}

// OpenHTTP3 serves HTTP/3 at a socket for datagrams, with the port's content.
func (p *Port) OpenHTTP3(socket net.PacketConn, resetKey *[32]byte) error {
	server, err := http3.Open(socket, http3.Config{
		Handler: http.HandlerFunc(p.serveHTTP), TLS: p.outer3, ResetKey: resetKey,
		Enter: func(client netip.Addr) func() {
			if at := p.opened.enter(connlimit.Client(client)); at != nil {
				return at.leave
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.http3 = server
	p.mu.Unlock()
	return nil
}

// StopHTTP3 takes no further connections of HTTP/3. What it returns ends those that there
// are, once requests have ended or when its context ends.
func (p *Port) StopHTTP3() (end func(context.Context)) {
	p.mu.Lock()
	server := p.http3
	p.http3 = nil
	p.mu.Unlock()
	if server == nil {
		return func(context.Context) {}
	}
	server.Stop()
	return server.Close
}
