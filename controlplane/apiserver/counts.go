package apiserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/controlplane/apiserver/authn"
	"knarr/controlplane/apiserver/metrics"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/run"
)

func (s *Server) countUser(r *http.Request, who user.Info, err error, took time.Duration) {
	switch {
	case err == nil:
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && authn.ByCertificate(who) {
			s.metrics.Access.ObserveCertificate(time.Until(r.TLS.PeerCertificates[0].NotAfter))
		}
		s.metrics.Access.ObserveAuthentication(metrics.Known, who.GetName(), took)
	case errors.Is(err, authn.ErrUnauthorized):
		s.metrics.Access.ObserveAuthentication(metrics.Unknown, "", took)
	default:
		s.metrics.Access.ObserveAuthentication(metrics.Failed, "", took)
	}
}

func (s *Server) countDecision(d authorizer.Decision, err error, took time.Duration) {
	result := metrics.NoOpinion
	switch {
	case d == authorizer.DecisionAllow:
		result = metrics.Allowed
	case err != nil:
		result = metrics.Undecided
	case d == authorizer.DecisionDeny:
		result = metrics.Denied
	}
	s.metrics.Access.ObserveAuthorization(result, took)
}

// contents counts the objects in the store.
type contents struct {
	cache *watchcache.Cache
	store storage.Store
}

var (
	objectsOf = prometheus.NewDesc("apiserver_resource_objects", "[ALPHA] Objects stored of each resource.", []string{"group", "resource"}, nil)
	storedAs  = prometheus.NewDesc("apiserver_storage_objects", "[STABLE] The same, under the older name.", []string{"resource"}, nil)
	revision  = prometheus.NewDesc("apiserver_watch_cache_resource_version", "[ALPHA] Revision of the last change of each resource.", []string{"group", "resource"}, nil)
	storeSize = prometheus.NewDesc("apiserver_storage_size_bytes", "[STABLE] Size of the store's file in bytes.", []string{"storage_cluster_id"}, nil)
)

// sizing bounds the question to the store.
const sizing = 3 * time.Second

// Describe leaves the registry to find out.
func (c contents) Describe(chan<- *prometheus.Desc) {}

// Collect counts the objects in the cache.
func (c contents) Collect(out chan<- prometheus.Metric) {
	defer run.Recover("metrics of objects")
	for gr, r := range c.cache.Stored() {
		n := float64(r.Len())
		out <- prometheus.MustNewConstMetric(objectsOf, prometheus.GaugeValue, n, gr.Group, gr.Resource)
		out <- prometheus.MustNewConstMetric(storedAs, prometheus.GaugeValue, n, gr.String())
		out <- prometheus.MustNewConstMetric(revision, prometheus.GaugeValue, float64(r.Changed()), gr.Group, gr.Resource)
	}
	ctx, cancel := context.WithTimeout(context.Background(), sizing)
	defer cancel()
	if size, err := storage.Size(ctx, c.store); err == nil {
		out <- prometheus.MustNewConstMetric(storeSize, prometheus.GaugeValue, float64(size), "etcd-0")
	}
}
