package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"knarr/addons/gateway/dataplane"
	"knarr/addons/gateway/route"
)

// manyChanges is how many routes there are when one of them changes, and when memory is
// compared.
const manyChanges = 5000

// changeLive is how long it takes from a changed Config to the first answer by it, with
// many routes: the median and the 99th of a hundred times, in milliseconds.
func changeLive(ctx context.Context) (p50, p99 float64, err error) {
	p := dataplane.New(dataplane.Options{})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	port := freePort()
	at := fmt.Sprintf("127.0.0.1:%d", port)
	routes, backends := manyRoutes(manyChanges), map[string]route.Backend{"backend": {}}
	config := func(n int) *route.Config { // the other routes are the very same, as of a compilation
		changed := *routes[1+n%manyChanges]
		changed.Rules = []route.Rule{{Filters: route.Filters{Redirect: &route.Redirect{Location: fmt.Sprint("/", n)}}}}
		routes = slices.Clone(routes)
		routes[1+n%manyChanges] = &changed
		return &route.Config{Backends: backends, Listeners: []route.Listener{{Name: "http", Protocol: route.HTTP,
			Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: uint16(port), PublicPort: 80, Routes: routes}}}
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at)
	}}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	var took []time.Duration
	for n := range 100 {
		c := config(n * 37)
		start := time.Now()
		for _, err := range p.Apply(c) {
			if err != nil {
				return 0, 0, err
			}
		}
		answer, err := client.Get(fmt.Sprintf("http://host-%d.example/path", n*37%manyChanges))
		if err != nil {
			return 0, 0, err
		}
		_ = answer.Body.Close()
		if got := answer.Header.Get("Location"); got != fmt.Sprint("/", n*37) {
			return 0, 0, fmt.Errorf("change %d is answered by %q", n, got)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took[len(took)/2].Seconds() * 1e3, took[len(took)*99/100-1].Seconds() * 1e3, nil
}
