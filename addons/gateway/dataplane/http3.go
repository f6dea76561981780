package dataplane

import (
	"context"
	"fmt"

	"knarr/addons/gateway/listener"
	"knarr/addons/gateway/route"
)

// serveHTTP3 opens and closes the ports of UDP where HTTP/3 is served as well. A listener
// whose port cannot be had gets an error, and is served without it.
func (p *Plane) serveHTTP3(wanted map[portKey]*wantedPort, results map[string]error) {
	for key, open := range p.ports {
		w := wanted[key]
		if open.tcp == nil || w == nil {
			continue
		}
		port := w.http3Port()
		at := portKey{listener.Address{Addr: key.address.Addr, Port: port}, true}
		if port != 0 && wanted[at] != nil {
			w.fail(results, fmt.Errorf("HTTP/3: port %d is used by listener %q", port, wanted[at].listeners[0].Name))
			port = 0
		}
		if open.http3 != port && open.http3 != 0 {
			open.http3 = 0
			end := open.tcp.StopHTTP3()
			p.closing.Go("gateway: close HTTP/3", func() {
				ctx, cancel := context.WithTimeout(context.Background(), p.options.DrainTimeout)
				defer cancel()
				end(ctx)
			})
		}
		if open.http3 != port {
			if err := p.openHTTP3(open, at.address); err != nil {
				w.fail(results, fmt.Errorf("HTTP/3: %w", err))
			} else {
				open.http3 = port
			}
		}
		if handler := open.http[true]; handler != nil {
			handler.ServesHTTP3(open.http3 != 0)
		}
	}
}

func (p *Plane) openHTTP3(open *port, at listener.Address) error {
	socket, err := p.options.ListenPacket("udp", at.String())
	if err != nil {
		return err
	}
	return open.tcp.OpenHTTP3(socket, p.options.ResetKey)
}

// http3Port is where the first listener that wants HTTP/3 has it; 0 if none does.
func (w *wantedPort) http3Port() uint16 {
	for _, l := range w.listeners {
		if l.Protocol == route.HTTPS && l.HTTP3Port != 0 {
			return l.HTTP3Port
		}
	}
	return 0
}

// fail notes why the listeners that want HTTP/3 are served without it.
func (w *wantedPort) fail(results map[string]error, err error) {
	for _, l := range w.listeners {
		if l.HTTP3Port != 0 {
			results[l.Name] = err
		}
	}
}
