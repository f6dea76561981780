package kubeproxy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"knarr/internal/run"
)

// A serviceHealth tells load balancers, at a Service's healthCheckNodePort,
// whether this node has endpoints of it.
type serviceHealth struct {
	healthy func() bool // of the proxy itself
	// failed is told of a port that cannot be listened on.
	failed func(name cache.ObjectName, port uint16, err error)
	// again has such a Service looked at again, which calls retry.
	again   func(name cache.ObjectName)
	servers map[cache.ObjectName]*healthServer
}

// A healthServer answers for one Service.
type healthServer struct {
	name    cache.ObjectName
	port    uint16
	healthy func() bool
	server  *http.Server
	failed  bool
	timer   *time.Timer // of the next try to listen

	mu    sync.Mutex
	local int // endpoints on this node
}

// set has the port answer for a Service with so many endpoints on this node; no
// port closes it.
func (h *serviceHealth) set(name cache.ObjectName, port uint16, local int) {
	s := h.servers[name]
	if s != nil && s.port != port {
		s.close()
		delete(h.servers, name)
		s = nil
	}
	if port == 0 {
		return
	}
	if s == nil {
		s = &healthServer{name: name, port: port, healthy: h.healthy}
		h.servers[name] = s
	}
	h.listen(s)
	s.mu.Lock()
	s.local = local
	s.mu.Unlock()
}

// retryListen is how long a port that somebody else has is left to them.
const retryListen = time.Minute

// listen has a server listen that is new, or whose port somebody else had.
func (h *serviceHealth) listen(s *healthServer) {
	if s.server != nil {
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	err := s.listen()
	if err == nil {
		return
	}
	if !s.failed {
		s.failed = true // is told once
		h.failed(s.name, s.port, err)
	}
	s.timer = run.AfterFunc("kube-proxy: health of a Service", retryListen, func() { h.again(s.name) })
}

// retry tries again to listen for a Service that has not changed.
func (h *serviceHealth) retry(name cache.ObjectName) {
	if s := h.servers[name]; s != nil {
		h.listen(s)
	}
}

func (h *serviceHealth) close() {
	for _, s := range h.servers {
		s.close()
	}
}

func (s *healthServer) listen() error {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort("", strconv.Itoa(int(s.port))))
	if err != nil {
		return err
	}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	run.Go("kube-proxy: health of a Service", func() {
		if err := s.server.Serve(l); err != nil && err != http.ErrServerClosed {
			slog.Warn("service health server", "service", s.name, "err", err)
		}
	})
	return nil
}

func (s *healthServer) close() {
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.server != nil {
		_ = s.server.Close()
	}
}

func (s *healthServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	local := s.local
	s.mu.Unlock()
	healthy := s.healthy()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
	if local == 0 || !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintf(w, `{
	"service": {
		"namespace": %q,
		"name": %q
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": %v
}`, s.name.Namespace, s.name.Name, local, healthy)
}
