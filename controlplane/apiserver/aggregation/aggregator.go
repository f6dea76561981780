// Package aggregation serves APIs that other servers implement: requests for
// them are passed on, and discovery shows them beside the cluster's own. It
// reads APIServices, Services and EndpointSlices in the cache, asks the servers
// what they serve, and writes APIServices: those of the cluster's own groups,
// and whether the others' servers are available.
package aggregation

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/keypair"
)

// Config is what an Aggregator needs.
type Config struct {
	Cache *watchcache.Cache
	// API serves the cluster's own groups, and discovery.
	API *endpoints.Server
	// Identity is the certificate by which servers know that the user named in
	// a request's headers has been authenticated here. Nil: none.
	Identity *keypair.File
	// Dial reaches the servers. Default: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Inside are servers in this process, by the "namespace/name" of the Service
	// that their APIServices name. There need be no such Service, and a connection
	// is not encrypted: it does not leave the process.
	Inside map[string]func(ctx context.Context, network, address string) (net.Conn, error)
}

// An Aggregator passes requests on.
type Aggregator struct {
	cfg      Config
	services *watchcache.Resource

	mu      sync.Mutex
	current atomic.Pointer[routes]
	found   map[string]*discovered // by APIService, what its server said last
	schemas map[string]schemas     // the same
	trigger chan struct{}
	// lost counts by APIService and reason how often one became unavailable.
	lost map[[2]string]uint64
}

// routes are the group versions served elsewhere, as of a revision.
type routes struct {
	revision int64
	by       map[schema.GroupVersion]*route
}

// New makes an aggregator; it starts nothing.
func New(c Config) *Aggregator {
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return &Aggregator{
		cfg: c, services: c.Cache.Resource(apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")),
		found: map[string]*discovered{}, schemas: map[string]schemas{}, trigger: make(chan struct{}, 1), lost: map[[2]string]uint64{},
	}
}

// Handler passes requests for other servers' groups on, the rest to next. When
// nothing is aggregated that costs two atomic loads.
func (a *Aggregator) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if by := a.routes(); len(by) > 0 {
			if gv, ok := versionOf(r.URL.Path); ok {
				if to := by[gv]; to != nil && !(strings.HasPrefix(r.URL.Path, "/openapi/") && a.cfg.API.Converted(gv)) {
					to.serve(w, r)
					return
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// versionOf is the group version that a path belongs to.
func versionOf(path string) (gv schema.GroupVersion, ok bool) {
	path = strings.TrimPrefix(path, "/openapi/v3")
	rest, ok := strings.CutPrefix(path, "/apis/")
	if !ok {
		return gv, false
	}
	group, rest, ok := strings.Cut(rest, "/")
	version, _, _ := strings.Cut(rest, "/")
	return schema.GroupVersion{Group: group, Version: version}, ok && version != ""
}

// routes are made anew when an APIService has changed.
func (a *Aggregator) routes() map[schema.GroupVersion]*route {
	revision := a.services.Changed()
	if now := a.current.Load(); now != nil && now.revision == revision {
		return now.by
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.current.Load()
	if old != nil && old.revision == revision {
		return old.by
	}
	next := &routes{revision: revision, by: map[schema.GroupVersion]*route{}}
	watchcache.Each(a.services, "", func(s *apiregistrationv1.APIService) bool {
		if s.Spec.Service == nil || s.Spec.Group == "" {
			return true
		}
		gv := schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
		to := newRoute(s)
		if old != nil && old.by[gv] != nil && old.by[gv].target == to.target {
			to.transport = old.by[gv].transport
		} else {
			to.transport = a.transport(to.target)
		}
		next.by[gv] = to
		return true
	})
	if old != nil {
		for gv, r := range old.by {
			if now := next.by[gv]; now == nil || now.transport != r.transport {
				r.transport.CloseIdleConnections()
			}
		}
	}
	a.current.Store(next)
	return next.by
}

func newRoute(s *apiregistrationv1.APIService) *route {
	port := int32(443)
	if s.Spec.Service.Port != nil {
		port = *s.Spec.Service.Port
	}
	return &route{
		available: available(s),
		target: target{namespace: s.Spec.Service.Namespace, name: s.Spec.Service.Name, port: port,
			insecure: s.Spec.InsecureSkipTLSVerify, ca: string(s.Spec.CABundle)},
	}
}

// Changed announces that the groups served here may have changed.
func (a *Aggregator) Changed() {
	select {
	case a.trigger <- struct{}{}:
	default:
	}
}

// Close ends idle connections.
func (a *Aggregator) Close() {
	if now := a.current.Load(); now != nil {
		for _, r := range now.by {
			r.transport.CloseIdleConnections()
		}
	}
}
