// Package kubeproxy is kube-proxy: it reads Services and EndpointSlices, and
// writes nftables rules of this node by netlink, in a table of its own per address
// family, so that connections to a Service reach one of its endpoints.
package kubeproxy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/internal/informer"
)

// Config is what a proxy needs.
type Config struct {
	// Kube reaches the API server as system:kube-proxy.
	Kube *rest.Config
	// Watches are shared with the node's other components. Default: none are.
	Watches *informer.Shared
	// NodeName is this node's.
	NodeName string
	// ClusterCIDRs are the pods' ranges; connections from elsewhere are
	// masqueraded.
	ClusterCIDRs []netip.Prefix
	// MasqueradeAll masquerades the pods' connections to cluster IPs too.
	MasqueradeAll bool
	// Table is the nftables table. Default "knarr".
	Table string
	// Healthz is the address of /healthz and /livez; empty: none.
	Healthz string
	// Metrics is the address of /metrics and /proxyMode; empty: none.
	Metrics string
	// NodePorts are the ranges of this node's addresses that node ports are at.
	// Default: the first address of each family of its Node object.
	NodePorts []netip.Prefix
	// Dataplane writes the rules, and Mode is its name. Default: this kernel's nftables.
	Dataplane Dataplane
	Mode      string
}

// A Dataplane makes the kernel agree with the rules it is given.
type Dataplane interface {
	// Apply makes the rules of each Service in changes the given ones,
	// atomically. The first call comes with all Services and replaces whatever
	// was there before. A Service that is refused has no rules, and keeps no
	// other from its own; it comes again later. After an error the next call
	// comes with all again.
	Apply(changes map[cache.ObjectName]Rules, all bool) (refused map[cache.ObjectName]error, err error)
	// Intact says whether the rules are still there. A firewall that starts
	// anew flushes those of others too.
	Intact() error
	// Changed is told when somebody else has changed rules, of whatever table.
	Changed() <-chan struct{}
	// Close gives back what the dataplane holds in this process; rules stay.
	Close() error
}

// A Proxy keeps the kernel's rules.
type Proxy struct {
	cfg      Config
	client   kubernetes.Interface
	services cache.SharedIndexInformer
	slices   cache.SharedIndexInformer
	nodes    cache.SharedIndexInformer // this one alone
	cidrs    cache.SharedIndexInformer
	watches  *informer.Watches
	own      informers.SharedInformerFactory // of this node's object
	queue    *pending
	metrics  *metrics

	mu  sync.Mutex
	err error // why there are no rules on this node
}

// Err says why this node has no rules for Services; nil while it has.
func (p *Proxy) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *Proxy) setErr(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// New puts a proxy together; it starts nothing.
func New(c Config) (*Proxy, error) {
	if c.Table == "" {
		c.Table = "knarr"
	}
	if c.Mode == "" {
		c.Mode = "nftables"
	}
	client, err := kubernetes.NewForConfig(c.Kube)
	if err != nil {
		return nil, fmt.Errorf("kube-proxy: %w", err)
	}
	w := informer.NewWatches(c.Watches, client)
	own := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(informer.TrimMetadata), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, c.NodeName).String()
	}))
	p := &Proxy{
		cfg: c, client: client, watches: w, own: own, queue: newPending(), metrics: newMetrics(),
		services: w.Core().V1().Services().Informer(), slices: w.Discovery().V1().EndpointSlices().Informer(),
		nodes: own.Core().V1().Nodes().Informer(), cidrs: w.Networking().V1().ServiceCIDRs().Informer(),
	}
	if m, ok := c.Dataplane.(measured); ok {
		p.metrics.registry.MustRegister(m.Collectors()...)
	}
	return p, w.IndexByService(p.slices)
}

// serviceOf is the Service whose endpoints a slice has; none if they are not for this proxy.
func serviceOf(s *discoveryv1.EndpointSlice) (cache.ObjectName, bool) {
	name := informer.ServiceOf(s)
	return name, name.Name != "" && !notForThisProxy(s.Labels)
}

// Run follows Services until ctx ends. Rules stay when it ends, so that a
// restart breaks no connection.
func (p *Proxy) Run(ctx context.Context) error {
	dp := p.cfg.Dataplane
	if dp == nil {
		k, err := newNFTables(p.cfg.Table, p.cfg.ClusterCIDRs, p.cfg.NodePorts...)
		if err != nil {
			return err
		}
		k.measure(p.metrics)
		dp = k
	}
	defer dp.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer p.own.Shutdown()
	defer p.watches.Stop()
	defer cancel() // before these, which wait for the informers
	pend := func(o any) {
		switch o := o.(type) {
		case *corev1.Service:
			p.queue.add(cache.MetaObjectToName(o))
		case *discoveryv1.EndpointSlice:
			if key, ok := serviceOf(o); ok {
				p.queue.add(key)
			}
		}
	}
	add := func(o any, first bool) {
		p.metrics.noteChange(o, first)
		if !first { // else it is among all that are written at the start
			pend(o)
		}
	}
	update := func(old, new any) {
		if a, ok := old.(*discoveryv1.EndpointSlice); ok { // a label may have moved it
			b := new.(*discoveryv1.EndpointSlice)
			pend(a)
			if t, ok := triggerOf(b); ok && a.ResourceVersion != b.ResourceVersion {
				p.queue.addTrigger(t)
			}
		}
		add(new, false)
	}
	handler := cache.ResourceEventHandlerDetailedFuncs{AddFunc: add, DeleteFunc: func(o any) { add(informer.Object(o), false) }, UpdateFunc: update}
	for _, inf := range []cache.SharedIndexInformer{p.services, p.slices} {
		if _, err := p.watches.Handle(inf, handler); err != nil {
			return fmt.Errorf("kube-proxy: %w", err)
		}
	}
	ofNode, err := p.followNode()
	if err != nil {
		return fmt.Errorf("kube-proxy: %w", err)
	}
	p.watches.Start(ctx)
	p.own.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), p.services.HasSynced, p.slices.HasSynced) {
		return nil
	}
	// Without these the rules are less, and follow later. If the node came only when the
	// first rules are being written, all Services would be planned twice.
	soon, stop := context.WithTimeout(ctx, nodeWait)
	cache.WaitForCacheSync(soon.Done(), ofNode...)
	stop()
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: p.client.CoreV1().Events("")})
	events := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kube-proxy", Host: p.cfg.NodeName})
	p.serve(ctx, events)
	y := newSyncer(p, dp, events)
	defer y.stop()
	p.keep(ctx, y)
	return nil
}

// keep writes what is pending until ctx ends, and all when the rules are gone.
func (p *Proxy) keep(ctx context.Context, y *syncer) {
	look := time.NewTimer(lookAtRules)
	defer look.Stop()
	looked, all := time.Time{}, true
	for wait := minWait; ; {
		err := y.sync(ctx, all)
		if err != nil {
			all = true
			if was := p.Err(); was == nil || was.Error() != err.Error() { // once, not at each try
				slog.ErrorContext(ctx, "write service rules, trying again whole until it succeeds", "err", err)
			}
			p.setErr(err)
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
			wait = min(2*wait, maxWait)
			continue
		}
		if all && p.Err() != nil {
			slog.InfoContext(ctx, "service rules written")
		}
		p.setErr(nil)
		all, wait = false, minWait
		select {
		case <-y.pending.c:
		case <-y.dataplane.Changed(): // now, unless others change rules all the time
			look.Reset(max(0, lookAgain-time.Since(looked)))
		case <-look.C:
			looked = time.Now()
			look.Reset(lookAtRules)
			if err := y.dataplane.Intact(); err != nil {
				slog.WarnContext(ctx, "service rules are gone, writing them anew", "err", err)
				all = true
			}
		case <-ctx.Done():
			return
		}
	}
}

// nodeWait bounds how long the first rules wait for those of the node.
const nodeWait = 5 * time.Second

// The longest and the shortest time between two looks whether the rules are
// still there.
const lookAtRules, lookAgain = 20 * time.Second, time.Second

// The times between two tries to write the whole table.
const minWait, maxWait = 100 * time.Millisecond, 30 * time.Second
