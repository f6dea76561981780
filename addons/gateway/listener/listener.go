// Package listener holds the sockets of the gateway: it accepts connections and
// datagrams, finds out by their first bytes whom they are for, ends TLS, and hands them to the HTTP
// servers or leads them on to backends. It reads and writes the network.
package listener

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"knarr/addons/gateway/http1"
	"knarr/addons/gateway/http2"
	"knarr/addons/gateway/http3"
	"knarr/internal/run"
)

// An Address is where a Port listens. An invalid Addr means all of this machine.
type Address struct {
	Addr netip.Addr
	Port uint16
}

func (a Address) String() string {
	if !a.Addr.IsValid() {
		return fmt.Sprintf(":%d", a.Port)
	}
	return netip.AddrPortFrom(a.Addr, a.Port).String()
}

// Limits of every connection, whoever opened it.
const (
	headerTime    = 10 * time.Second // for a TLS handshake, a ClientHello or a PROXY header
	acceptBackoff = 50 * time.Millisecond
)

// A Content is what a Port serves. It is not changed once it was handed over.
type Content struct {
	// Handler serves HTTP, in plain if TLS is nil.
	Handler http.Handler
	// TLS finds the listener of a connection by its server name.
	TLS *ServerNames
	// Raw leads connections on as they are; then there is neither of the above.
	Raw *Streams
	// Proxies may begin their connections with a PROXY header, and must if Required.
	Proxies *ProxyHeaders
}

// A Port is one socket and its connections.
type Port struct {
	listener net.Listener
	content  atomic.Pointer[Content]
	http     *http1.Server
	http2    *http2.Server
	outer    *tls.Config // holds the keys of session tickets
	group    run.Group
	streams  sync.WaitGroup
	opened   *connections
	outer3   *tls.Config // as outer, for HTTP/3

	mu     sync.Mutex
	closed bool
	http3  *http3.Server         // nil while it is not served
	open   map[net.Conn]struct{} // connections that are not the HTTP server's
}

// Open serves content at a socket until Close.
func Open(l net.Listener, content *Content) *Port {
	p := &Port{listener: l, opened: opened, open: map[net.Conn]struct{}{}}
	p.content.Store(content)
	p.outer = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: p.configFor}
	p.outer3 = &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{http3.Protocol}, GetConfigForClient: p.configForHTTP3}
	handler := http.HandlerFunc(p.serveHTTP)
	p.http2 = http2.NewServer(handler)
	p.http = http1.NewServer(handler, func(conn net.Conn, read []byte) {
		buf := bufio.NewReaderSize(bytes.NewReader(read), len(read))
		_, _ = buf.Peek(len(read))
		// The connection goes on while the first goroutine that counted it ends.
		at := placeOf(conn)
		if at == nil { // no socket: nothing that listens here has such
			_ = conn.Close()
			return
		}
		at.share()
		run.Go("gateway connection", func() {
			defer at.leave()
			p.http2.Serve(&peekedConn{Conn: conn, buf: buf}, at, nil)
		})
	})
	p.group.Go("gateway listener", p.accept)
	return p
}

// Set replaces what is served. Connections stay.
func (p *Port) Set(content *Content) { p.content.Store(content) }

func (p *Port) serveHTTP(w http.ResponseWriter, r *http.Request) {
	if h := p.content.Load().Handler; h != nil {
		h.ServeHTTP(w, r)
		return
	}
	w.WriteHeader(http.StatusMisdirectedRequest) // the port was given to another protocol
}

func (p *Port) accept() {
	for {
		conn, err := p.listener.Accept()
		if err == nil {
			at := p.opened.enter(clientOf(conn))
			if at == nil {
				_ = conn.Close()
				continue
			}
			run.Go("gateway connection", func() {
				defer at.leave()
				p.handle(conn, at)
			})
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		// Most likely there are too many open files: others end meanwhile.
		time.Sleep(acceptBackoff)
	}
}

// Stop takes no further connections; the address is free.
func (p *Port) Stop() { _ = p.listener.Close() }

// Close ends the port: no new connections, those that are idle end, and those that serve
// a request when they have, or when ctx ends.
func (p *Port) Close(ctx context.Context) {
	p.Stop()
	var servers run.Group
	servers.Go("gateway: end HTTP/1.1", func() { p.http.Shutdown(ctx) })
	http3 := p.StopHTTP3()
	servers.Go("gateway: end HTTP/3", func() { http3(ctx) })
	p.http2.Shutdown(ctx)
	servers.Wait()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.waitStreams(ctx)
	p.group.Wait()
}
