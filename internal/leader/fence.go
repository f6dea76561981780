package leader

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
)

// Fenced is cfg with clients that refuse to change anything in a term whose Lease has
// run out, by the context of the request. A process that stood still, stopped or starved,
// goes on where it was before it learns that another leads, and all it believes is old: to
// it every node has been silent for as long. Requests of no term pass.
func Fenced(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return fence{next} })
	return cfg
}

type fence struct{ next http.RoundTripper }

// WrappedRoundTripper lets client-go look behind the fence.
func (f fence) WrappedRoundTripper() http.RoundTripper { return f.next }

func (f fence) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return f.next.RoundTrip(r)
	}
	if l, ok := r.Context().Value(leaseKey{}).(lease); ok && !l.held() {
		if r.Body != nil { // as http.RoundTripper asks
			_ = r.Body.Close()
		}
		return nil, fmt.Errorf("not sent: the Lease %s has run out, another may lead", l.name)
	}
	return f.next.RoundTrip(r)
}

// A lease is what a term is led by.
type lease struct {
	elector *leaderelection.LeaderElector
	name    string
}

type leaseKey struct{}

func under(ctx context.Context, elector *leaderelection.LeaderElector, name string) context.Context {
	return context.WithValue(ctx, leaseKey{}, lease{elector, name})
}

// held says that the Lease is this leader's and has not run out by this clock.
func (l lease) held() bool { return l.elector.IsLeader() && l.elector.Check(0) == nil }
