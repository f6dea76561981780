package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"knarr/addons/gateway/dataplane"
	"knarr/addons/gateway/route"
)

// maxIdle is how many idle connections are opened, if this machine's bound of open files
// lets that be.
const maxIdle = 100_000

// idleConnections opens connections that each ask once and then stay, and says how many
// there are and what one of them costs the contender, in kB. They come from many addresses
// of loopback, so that neither ports nor the bound for one client run out.
func (c *contender) idleConnections(ctx context.Context, encrypted bool) (n int, each float64, err error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0, 0, err
	}
	// knarr takes a third of its files, since each connection may need another to a backend.
	most := min(maxIdle, int(files.Cur)/3-300)
	before := c.memory()
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}()
	for len(open) < most && ctx.Err() == nil {
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 1+byte(len(open)/20_000), 1+byte(len(open)/1000%20))}
		conn, err := load{address: c.at(encrypted), tls: encrypted, from: from}.dial()
		if err != nil {
			return 0, 0, fmt.Errorf("connection %d: %w", len(open), err)
		}
		open = append(open, conn)
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Write(request); err != nil {
			return 0, 0, fmt.Errorf("connection %d: %w", len(open), err)
		}
		if err := readAnswer(bufio.NewReaderSize(conn, 4<<10)); err != nil {
			return 0, 0, fmt.Errorf("connection %d: %w", len(open), err)
		}
	}
	select {
	case <-time.After(3 * time.Second): // buffers are given back
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	return len(open), float64(c.memory()-before) / float64(len(open)) / 1e3, nil
}

// unused is what knarr's data plane holds in a process that serves nothing, in MB: with a
// Config that is empty, and one after it that was served and is empty again.
func unused() (never, again float64) {
	held := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc+m.StackInuse) / 1e6
	}
	before := held()
	p := dataplane.New(dataplane.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	p.Apply(&route.Config{})
	never = held() - before
	p.Apply(&route.Config{Backends: map[string]route.Backend{"backend": {}}, Listeners: []route.Listener{{Name: "http", Protocol: route.HTTP,
		Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: uint16(freePort()), PublicPort: 80, Routes: manyRoutes(manyChanges)}}})
	p.Apply(&route.Config{})
	again = held() - before
	cancel()
	<-done
	return never, again
}
