package kubeproxy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"knarr/internal/run"
)

// healthTimeout is how long a change may wait for the kernel's rules until the
// proxy says that it is not well.
const healthTimeout = time.Minute

// toBeDeleted is the taint of a node that the cluster autoscaler takes away: load
// balancers shall not use it any more.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// A health is what /healthz and /livez say, as upstream does.
type health struct {
	LastUpdated  time.Time                        `json:"lastUpdated"`
	CurrentTime  time.Time                        `json:"currentTime"`
	NodeEligible *bool                            `json:"nodeEligible,omitempty"` // not of /livez
	Status       map[corev1.IPFamily]familyHealth `json:"status,omitempty"`
}

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// eligible says whether load balancers may use a node.
func eligible(node *corev1.Node) bool {
	if node == nil {
		return true // until it is known otherwise
	}
	for _, t := range node.Spec.Taints {
		if t.Key == toBeDeleted {
			return false
		}
	}
	return node.DeletionTimestamp == nil
}

// health answers with the state of the proxy, and of its node.
func (p *Proxy) health(ofNode bool, count *prometheus.CounterVec) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		updated, late := p.queue.state(now)
		h := health{LastUpdated: updated, CurrentTime: now, Status: map[corev1.IPFamily]familyHealth{}}
		for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
			h.Status[family] = familyHealth{updated, !late}
		}
		well := !late
		if ofNode {
			usable := eligible(p.node())
			well = well && usable
			h.NodeEligible = &usable
		}
		code := http.StatusServiceUnavailable
		if well {
			code, h.LastUpdated = http.StatusOK, now // upstream's, for those who read it
		}
		count.WithLabelValues(strconv.Itoa(code)).Inc()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(h); err != nil {
			slog.Debug("answer a health check", "err", err)
		}
	}
}

// serve answers at the addresses for health and for metrics.
func (p *Proxy) serve(ctx context.Context, events record.EventRecorder) {
	healthz := http.NewServeMux()
	healthz.HandleFunc("/healthz", p.health(true, p.metrics.healthz))
	healthz.HandleFunc("/livez", p.health(false, p.metrics.livez))
	metrics := http.NewServeMux()
	metrics.HandleFunc("/healthz", p.health(true, p.metrics.healthz))
	metrics.HandleFunc("/livez", p.health(false, p.metrics.livez))
	metrics.Handle("/metrics", promhttp.HandlerFor(p.metrics.registry, promhttp.HandlerOpts{}))
	metrics.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		fmt.Fprint(w, p.cfg.Mode)
	})
	node := &corev1.ObjectReference{Kind: "Node", Name: p.cfg.NodeName, UID: apitypes.UID(p.cfg.NodeName)} // upstream's
	for _, e := range []httpServer{
		{"healthz-bind-address", p.cfg.Healthz, healthz, func(err error) {
			events.Event(node, corev1.EventTypeWarning, "FailedToStartProxierHealthcheck", fmt.Sprintf("failed to start proxier healthz on %s: %v", p.cfg.Healthz, err))
		}},
		{"metrics-bind-address", p.cfg.Metrics, metrics, func(error) {}},
	} {
		if e.addr != "" {
			run.Go("kube-proxy: health and metrics", func() { e.serve(ctx) })
		}
	}
}

// An httpServer is an address that a handler answers at.
type httpServer struct {
	flag, addr string
	handler    http.Handler
	failed     func(error) // is told when the address cannot be had
}

// The times between two tries to have an address that somebody else has.
const minListen, maxListen = 5 * time.Second, time.Minute

// serve answers until ctx ends. An address that somebody else has is tried again.
func (e httpServer) serve(ctx context.Context) {
	srv := &http.Server{Handler: e.handler, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	last := ""
	for wait := minListen; ctx.Err() == nil; wait = min(2*wait, maxListen) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", e.addr)
		if err == nil {
			if last != "" {
				slog.InfoContext(ctx, "kube-proxy health and metrics server listens", "address", e.addr)
			}
			last, wait = "", minListen
			err = srv.Serve(l)
		}
		if ctx.Err() != nil {
			return
		}
		if text := err.Error(); text != last { // once, not at each try
			last = text
			slog.WarnContext(ctx, "kube-proxy health and metrics server, trying again", "address", e.addr, "flag", "kube-proxy --"+e.flag, "err", err)
			e.failed(err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}
