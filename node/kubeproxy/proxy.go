// Package kubeproxy is kube-proxy: it reads Services and EndpointSlices, and
// writes nftables rules of this node by netlink, in a table of its own, so that
// connections to a Service reach one of its endpoints.
package kubeproxy

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Config is what a proxy needs.
type Config struct {
	// Kube reaches the API server as system:kube-proxy.
	Kube *rest.Config
	// NodeName is this node's.
	NodeName string
	// ClusterCIDRs are the pods' ranges; connections from elsewhere are
	// masqueraded.
	ClusterCIDRs []netip.Prefix
	// Table is the nftables table. Default "knarr".
	Table string
	// Healthz is the address of /healthz; empty: none.
	Healthz string
	// Dataplane writes the rules. Default: this kernel's nftables.
	Dataplane Dataplane
}

// A Dataplane makes the kernel as it is told.
type Dataplane interface {
	// Apply makes the rules of each Service in changes the given ones,
	// atomically. The first call comes with all Services and replaces whatever
	// was there before. After an error the next call comes with all again.
	Apply(changes map[cache.ObjectName]Rules, all bool) error
	// Close gives back what the dataplane holds in this process; rules stay.
	Close() error
}

// A Proxy keeps the kernel's rules.
type Proxy struct {
	cfg      Config
	services cache.SharedIndexInformer
	slices   cache.SharedIndexInformer
	factory  informers.SharedInformerFactory
}

const byService = "service"

// New puts a proxy together; it starts nothing.
func New(c Config) (*Proxy, error) {
	if c.Table == "" {
		c.Table = "knarr"
	}
	client, err := kubernetes.NewForConfig(c.Kube)
	if err != nil {
		return nil, fmt.Errorf("kube-proxy: %w", err)
	}
	f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim))
	p := &Proxy{cfg: c, factory: f, services: f.Core().V1().Services().Informer(), slices: f.Discovery().V1().EndpointSlices().Informer()}
	return p, p.slices.AddIndexers(cache.Indexers{byService: func(o any) ([]string, error) {
		if key, ok := serviceOf(o.(*discoveryv1.EndpointSlice)); ok {
			return []string{key.String()}, nil
		}
		return nil, nil
	}})
}

// slim drops what the proxy never reads, so that the cache stays small.
func slim(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
		m.SetAnnotations(nil)
	}
	return o, nil
}

func serviceOf(s *discoveryv1.EndpointSlice) (cache.ObjectName, bool) {
	name := s.Labels[discoveryv1.LabelServiceName]
	return cache.NewObjectName(s.Namespace, name), name != ""
}

// Run follows Services until ctx ends. Rules stay when it ends, so that a
// restart breaks no connection.
func (p *Proxy) Run(ctx context.Context) error {
	dp := p.cfg.Dataplane
	if dp == nil {
		var err error
		if dp, err = newNFTables(p.cfg.Table, p.cfg.ClusterCIDRs); err != nil {
			return err
		}
	}
	defer dp.Close()
	pending := newPending()
	add := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		switch o := o.(type) {
		case *corev1.Service:
			pending.add(cache.MetaObjectToName(o))
		case *discoveryv1.EndpointSlice:
			if key, ok := serviceOf(o); ok {
				pending.add(key)
			}
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: add, DeleteFunc: add, UpdateFunc: func(old, new any) { add(old); add(new) }}
	for _, inf := range []cache.SharedIndexInformer{p.services, p.slices} {
		if _, err := inf.AddEventHandler(handler); err != nil {
			return fmt.Errorf("kube-proxy: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	p.factory.StartWithContext(ctx)
	defer p.factory.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	if !cache.WaitForCacheSync(ctx.Done(), p.services.HasSynced, p.slices.HasSynced) {
		return nil
	}
	p.serveHealth(ctx)
	all := true
	for wait := 100 * time.Millisecond; ; {
		changes := pending.take()
		if all {
			for _, o := range p.services.GetStore().List() {
				changes[cache.MetaObjectToName(o.(*corev1.Service))] = Rules{}
			}
		}
		for key := range changes {
			rules, err := p.plan(key)
			if err != nil {
				return err
			}
			changes[key] = rules
		}
		if len(changes) > 0 || all {
			if err := dp.Apply(changes, all); err != nil {
				slog.ErrorContext(ctx, "write service rules, trying again whole", "in", wait, "err", err)
				all = true
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					return nil
				}
				wait = min(2*wait, 30*time.Second)
				continue
			}
			all, wait = false, 100*time.Millisecond
		}
		select {
		case <-pending.c:
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *Proxy) plan(key cache.ObjectName) (Rules, error) {
	o, ok, err := p.services.GetStore().GetByKey(key.String())
	if err != nil || !ok {
		return plan(nil, nil, ""), err
	}
	found, err := p.slices.GetIndexer().ByIndex(byService, key.String())
	if err != nil {
		return Rules{}, err
	}
	eps := make([]*discoveryv1.EndpointSlice, len(found))
	for i, s := range found {
		eps[i] = s.(*discoveryv1.EndpointSlice)
	}
	return plan(o.(*corev1.Service), eps, p.cfg.NodeName), nil
}

func (p *Proxy) serveHealth(ctx context.Context) {
	if p.cfg.Healthz == "" {
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	srv := &http.Server{Addr: p.cfg.Healthz, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	go func() {
		if err := srv.ListenAndServe(); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "kube-proxy health server", "err", err)
		}
	}()
}
