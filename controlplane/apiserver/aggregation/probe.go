package aggregation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"knarr/controlplane/apiserver/backend"
	"knarr/controlplane/apiserver/watchcache"
)

// How often a server is asked whether it is there, and how long it may take.
const (
	recheck    = 30 * time.Second
	probeTime  = 5 * time.Second
	firstRetry = 100 * time.Millisecond
	// maxDocument bounds what is read of a server's documents.
	maxDocument = 8 << 20
)

// discovered is what a server's discovery lists.
type discovered struct {
	version apidiscoveryv2.APIVersionDiscovery
}

// look keeps the Available condition of one APIService true to its server:
// whenever what leads there has changed, and now and then.
func (a *Aggregator) look(ctx context.Context, name string) {
	for retry := firstRetry; ctx.Err() == nil; {
		retry = max(a.lookOnce(ctx, name, retry), firstRetry)
	}
}

// lookOnce checks, and waits until there is reason to check again. It returns
// how soon a server that fails is to be asked the next time.
func (a *Aggregator) lookOnce(ctx context.Context, name string, retry time.Duration) time.Duration {
	defer contain(ctx, "aggregation of "+name)
	s, ok := watchcache.Read[*apiregistrationv1.APIService](a.services, name)
	if !ok || s.Spec.Service == nil {
		pause(ctx, time.Second) // Run is about to end this
		return retry
	}
	watchers, err := a.watchers(ctx, s)
	if err != nil {
		pause(ctx, time.Second)
		return retry
	}
	defer watchers.stop()
	condition := a.check(ctx, s)
	if err := a.set(ctx, name, condition); err != nil {
		condition.Status = apiregistrationv1.ConditionUnknown // try again soon
	}
	if condition.Status == apiregistrationv1.ConditionTrue {
		watchers.wait(ctx, s, recheck)
		return firstRetry
	}
	a.retryNow(name)
	watchers.wait(ctx, s, retry)
	return min(retry*2, recheck)
}

// watchers see what leads to a server change.
type watchers []*watchcache.Watcher

func (a *Aggregator) watchers(ctx context.Context, s *apiregistrationv1.APIService) (out watchers, err error) {
	ref := s.Spec.Service
	of := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: ref.Name})
	for _, w := range []struct {
		r *watchcache.Resource
		q watchcache.WatchQuery
	}{
		{a.services, watchcache.WatchQuery{Name: s.Name}},
		{a.cfg.Cache.Resource(corev1.SchemeGroupVersion.WithResource("services")), watchcache.WatchQuery{Namespace: ref.Namespace, Name: ref.Name}},
		{a.cfg.Cache.Resource(discoveryv1.SchemeGroupVersion.WithResource("endpointslices")), watchcache.WatchQuery{Namespace: ref.Namespace, Labels: of}},
	} {
		w.q.ResourceVersion, w.q.SendInitialEvents = "0", new(false)
		watcher, err := w.r.Watch(ctx, w.q)
		if err != nil {
			out.stop()
			return nil, err
		}
		out = append(out, watcher)
	}
	return out, nil
}

func (w watchers) stop() {
	for _, one := range w {
		one.Stop()
	}
}

// wait returns when one has seen something that counts, or time is up.
func (w watchers) wait(ctx context.Context, s *apiregistrationv1.APIService, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	var buf []watchcache.Delivery
	for {
		var err error
		var from *watchcache.Watcher
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			return
		case <-w[0].C():
			from = w[0]
		case <-w[1].C():
			from = w[1]
		case <-w[2].C():
			from = w[2]
		}
		if buf, err = from.Poll(buf[:0]); err != nil {
			return
		}
		for _, d := range buf {
			if from != w[0] {
				return
			}
			// Of the APIService itself only the spec counts: the status is ours.
			o, err := d.Record.Object()
			if now, ok := o.(*apiregistrationv1.APIService); err != nil || !ok || !equality.Semantic.DeepEqual(now.Spec, s.Spec) {
				return
			}
		}
	}
}

// check finds out whether the server is there.
func (a *Aggregator) check(ctx context.Context, s *apiregistrationv1.APIService) apiregistrationv1.APIServiceCondition {
	c := apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionFalse, LastTransitionTime: metav1.Now()}
	if c.Reason, c.Message = a.unreachable(s); c.Reason != "" {
		return c
	}
	if err := a.ask(ctx, s); err != nil {
		c.Reason, c.Message = "FailedDiscoveryCheck", err.Error()
		return c
	}
	c.Status, c.Reason, c.Message = apiregistrationv1.ConditionTrue, "Passed", "all checks passed"
	return c
}

// unreachable says why no server can be reached through the Service.
func (a *Aggregator) unreachable(s *apiregistrationv1.APIService) (reason, message string) {
	to := newRoute(s).target
	if a.cfg.Inside[to.service()] != nil {
		return "", ""
	}
	svc, ok := watchcache.Read[*corev1.Service](a.cfg.Cache.Resource(corev1.SchemeGroupVersion.WithResource("services")), to.namespace+"/"+to.name)
	if !ok {
		return "ServiceNotFound", fmt.Sprintf("service/%s in %q is not present", to.name, to.namespace)
	}
	if svc.Spec.Type != corev1.ServiceTypeClusterIP {
		return "", ""
	}
	port, err := backend.PortOf(svc, to.port)
	if err != nil {
		return "ServicePortError", fmt.Sprintf("service/%s in %q is not listening on port %d", to.name, to.namespace, to.port)
	}
	some, active := false, false
	watchcache.Each(a.cfg.Cache.Resource(discoveryv1.SchemeGroupVersion.WithResource("endpointslices")), to.namespace, func(e *discoveryv1.EndpointSlice) bool {
		if e.Labels[discoveryv1.LabelServiceName] == to.name {
			some, active = true, active || hasEndpoint(e, port.Name)
		}
		return true
	})
	switch {
	case !some:
		return "EndpointsNotFound", fmt.Sprintf("cannot find endpointslices for service/%s in %q", to.name, to.namespace)
	case !active:
		return "MissingEndpoints", fmt.Sprintf("endpointslices for service/%s in %q have no addresses with port name %q", to.name, to.namespace, port.Name)
	}
	return "", ""
}

func hasEndpoint(e *discoveryv1.EndpointSlice, port string) bool {
	return slices.ContainsFunc(e.Endpoints, func(p discoveryv1.Endpoint) bool { return p.Conditions.Ready == nil || *p.Conditions.Ready }) &&
		slices.ContainsFunc(e.Ports, func(p discoveryv1.EndpointPort) bool { return p.Name != nil && *p.Name == port && p.Port != nil })
}

// ask gets the server's discovery document, which shows both that it is there
// and what it serves.
func (a *Aggregator) ask(ctx context.Context, s *apiregistrationv1.APIService) error {
	tr := a.transport(newRoute(s).target)
	defer tr.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	base := "https://" + newRoute(s).host()
	url := base + "/apis/" + s.Spec.Group + "/" + s.Spec.Version
	body, err := get(ctx, tr, url)
	if err != nil {
		return err
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil // it answers; what it serves is not known
	}
	found := &discovered{version: versionDiscovery(s.Spec.Version, &list)}
	a.mu.Lock()
	old := a.found[s.Name]
	a.found[s.Name] = found
	a.mu.Unlock()
	news, err := a.learn(ctx, tr, base, s)
	if err != nil { // it is there all the same
		slog.WarnContext(ctx, "loading OpenAPI spec", "apiservice", s.Name, "err", err)
	}
	if news || !reflect.DeepEqual(old, found) {
		a.Changed()
	}
	return nil
}

func get(ctx context.Context, tr http.RoundTripper, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	transport.SetAuthProxyHeaders(req, "system:kube-aggregator", "", []string{"system:masters"}, nil)
	client := http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("failing or missing response from %v: %w", url, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return nil, fmt.Errorf("failing or missing response from %v: %w", url, fmt.Errorf("bad status from %v: %d", url, resp.StatusCode))
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxDocument))
}

// versionDiscovery is a server's list of resources in the form of aggregated
// discovery.
func versionDiscovery(version string, list *metav1.APIResourceList) apidiscoveryv2.APIVersionDiscovery {
	out := apidiscoveryv2.APIVersionDiscovery{Version: version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	index := map[string]int{}
	for _, r := range list.APIResources {
		kind := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
		name, sub, isSub := strings.Cut(r.Name, "/")
		i, ok := index[name]
		if !ok {
			i, index[name] = len(out.Resources), len(out.Resources)
			scope := apidiscoveryv2.ScopeCluster
			if r.Namespaced {
				scope = apidiscoveryv2.ScopeNamespace
			}
			out.Resources = append(out.Resources, apidiscoveryv2.APIResourceDiscovery{Resource: name, Scope: scope})
		}
		d := &out.Resources[i]
		if isSub {
			d.Subresources = append(d.Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: sub, ResponseKind: kind, Verbs: r.Verbs})
			continue
		}
		d.ResponseKind, d.SingularResource, d.Verbs, d.ShortNames, d.Categories = kind, r.SingularName, r.Verbs, r.ShortNames, r.Categories
	}
	return out
}

// set writes the condition, if it says something new.
func (a *Aggregator) set(ctx context.Context, name string, c apiregistrationv1.APIServiceCondition) error {
	for {
		rec := a.services.Peek(name)
		if rec == nil {
			return nil
		}
		o, err := rec.Object()
		if err != nil {
			return err
		}
		s := o.DeepCopyObject().(*apiregistrationv1.APIService)
		if s.Spec.Service == nil {
			return nil
		}
		helper.SetAPIServiceCondition(s, c)
		if equality.Semantic.DeepEqual(s, o) {
			return nil
		}
		_, err = a.services.Update(ctx, name, rec, s)
		if err == nil && available(o.(*apiregistrationv1.APIService)) && !available(s) {
			a.count(name, c.Reason)
		}
		if !errors.Is(err, watchcache.ErrConflict) {
			return err
		}
		if err := a.cfg.Cache.Sync(ctx); err != nil {
			return err
		}
	}
}

func (a *Aggregator) forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.found, name)
	delete(a.schemas, name)
	maps.DeleteFunc(a.lost, func(k [2]string, _ uint64) bool { return k[0] == name })
}
