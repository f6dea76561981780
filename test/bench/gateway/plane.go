package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	_ "net/http/pprof"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"knarr/addons/gateway/dataplane"
	"knarr/addons/gateway/route"
)

// servePlane is knarr's data plane alone, with the ports, certificate and backend of the
// arguments, and further routes that match nothing.
func servePlane(plain, encrypted, certificate, key, backend, routes string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	cert, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	if at := os.Getenv("PPROF"); at != "" {
		go func() { _ = http.ListenAndServe(at, nil) }()
	}
	p := dataplane.New(dataplane.Options{Metrics: prometheus.NewRegistry()})
	more, _ := strconv.Atoi(routes)
	port := func(s string) uint16 {
		n, _ := strconv.ParseUint(s, 10, 16)
		return uint16(n)
	}
	served := manyRoutes(more)
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	c := &route.Config{
		Listeners: []route.Listener{
			{Name: "http", Addresses: loopback, Port: port(plain), PublicPort: 80, Protocol: route.HTTP, Routes: served},
			{Name: "https", Addresses: loopback, Port: port(encrypted), PublicPort: 443, Protocol: route.HTTPS, Routes: served, Certificates: []*tls.Certificate{&cert}},
		},
		Backends: map[string]route.Backend{"backend": {Protocol: route.BackendHTTP}},
	}
	p.SetEndpoints("backend", []route.Endpoint{{Address: netip.MustParseAddrPort(backend)}})
	for name, err := range p.Apply(c) {
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return p.Run(ctx)
}

// manyRoutes are the one that is asked, and others.
func manyRoutes(n int) []*route.Route {
	to := []route.Share{{Backend: "backend", Weight: 1}}
	routes := []*route.Route{{Name: "HTTPRoute default/bench", Rules: []route.Rule{{Backends: to}}}}
	for i := range n {
		routes = append(routes, &route.Route{Name: fmt.Sprintf("HTTPRoute default/route-%d", i), Hosts: []string{fmt.Sprintf("host-%d.example", i)},
			Rules: []route.Rule{{Matches: []route.Match{{Path: "/path"}}, Backends: to}}})
	}
	return routes
}
