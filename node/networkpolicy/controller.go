// Package networkpolicy holds the pods of this node to NetworkPolicies: it reads
// NetworkPolicies, Pods and Namespaces, and writes nftables rules of this node by
// netlink, in a table of its own, and warning events of policies.
package networkpolicy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/internal/informer"
	"knarr/internal/run"
)

// Config is what a controller needs.
type Config struct {
	// Kube reaches the API server as a user who may watch policies, pods and
	// namespaces, and write events.
	Kube *rest.Config
	// Watches are shared with the node's other components. Default: none are.
	Watches *informer.Shared
	// NodeName is this node's.
	NodeName string
	// Table is the nftables table. Default "knarr-policy".
	Table string
	// Dataplane writes the rules. Default: this kernel's nftables.
	Dataplane Dataplane
}

// A Dataplane makes the kernel agree with what it is given.
type Dataplane interface {
	// Apply writes changes. With all they are everything there shall be, and
	// replace whatever was there before, in one step. A policy that is refused
	// allows nothing; it comes again later, with all others. After an error the
	// next call comes with all.
	Apply(c *Changes, all bool) (refused map[cache.ObjectName]error, err error)
	// Open lets new connections to and from a new pod's addresses through, as far
	// as its policies do.
	Open(addrs []netip.Addr) error
	// Watch reports what others do to the rules until ctx ends: that they are gone
	// or may be, and why, and which new pods there are.
	Watch(ctx context.Context, gone func(why string), attached func(uid string, a netip.Addr)) error
	// Close gives back what the dataplane holds in this process; rules stay.
	Close() error
}

// A Controller keeps the kernel's rules.
type Controller struct {
	cfg    Config
	client kubernetes.Interface
	// Pods and namespaces are watched once there is a policy, and nil before: most
	// clusters have none, and theirs are the largest caches of a node.
	watches                    *informer.Watches
	policies, pods, namespaces cache.SharedIndexInformer

	mu  sync.Mutex
	err error // why there are no rules on this node
}

// Err says why policies are not in force on this node; nil while they are.
func (c *Controller) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Controller) setErr(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// DefaultTable is the nftables table of a node that is not told otherwise.
const DefaultTable = "knarr-policy"

// New puts a controller together; it starts nothing.
func New(cfg Config) (*Controller, error) {
	if cfg.Table == "" {
		cfg.Table = DefaultTable
	}
	client, err := kubernetes.NewForConfig(cfg.Kube)
	if err != nil {
		return nil, fmt.Errorf("network policy: %w", err)
	}
	w := informer.NewWatches(cfg.Watches, client)
	return &Controller{
		cfg: cfg, client: client, watches: w,
		policies: w.Networking().V1().NetworkPolicies().Informer(),
	}, nil
}

// Run follows policies until ctx ends. Rules stay when it ends, so that a restart
// opens and breaks nothing.
func (c *Controller) Run(ctx context.Context) error {
	dp := c.cfg.Dataplane
	if dp == nil {
		var err error
		if dp, err = newNFTables(c.cfg.Table); err != nil {
			return err
		}
	}
	defer dp.Close()
	pending := newPending()
	if err := c.note(pending, c.policies); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	var group run.Group
	defer group.Wait()
	defer c.watches.Stop()
	defer cancel() // before Stop, which waits for the informers
	group.Loop(ctx, "network policy: watch the rules", func(ctx context.Context) { c.watch(ctx, dp, pending) })
	c.watches.Start(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), c.policies.HasSynced) {
		return nil
	}
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.client.CoreV1().Events("")})
	y := &syncer{
		controller: c, dataplane: dp, pending: pending, index: newIndex(c.cfg.NodeName),
		events:  broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "network-policy", Host: c.cfg.NodeName}),
		refused: map[cache.ObjectName]string{}, unknown: map[netip.Addr]newcomer{}, wait: minRefused,
	}
	defer y.stop()
	return c.follow(ctx, y)
}

// follow writes what is pending, again and again.
func (c *Controller) follow(ctx context.Context, y *syncer) error {
	all, watching := true, false
	for wait := minWait; ; {
		if !watching && len(c.policies.GetStore().ListKeys()) > 0 {
			if err := c.watchPods(y.pending); err != nil {
				return err
			}
			c.watches.Start(ctx)
			if !cache.WaitForCacheSync(ctx.Done(), c.pods.HasSynced, c.namespaces.HasSynced) {
				return nil
			}
			watching, all = true, true
		}
		err := y.sync(ctx, all, watching)
		if err != nil {
			all = true
			if was := c.Err(); was == nil || was.Error() != err.Error() { // once, not at each try
				slog.ErrorContext(ctx, "write network policy rules, trying again whole until it succeeds", "err", err)
			}
			c.setErr(err)
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return nil
			}
			wait = min(2*wait, maxWait)
			continue
		}
		if all && c.Err() != nil {
			slog.InfoContext(ctx, "network policy rules written")
		}
		c.setErr(nil)
		all, wait = false, minWait
		select {
		case <-y.pending.c:
		case <-ctx.Done():
			return nil
		}
	}
}

// The times between two tries to write everything.
const minWait, maxWait = 10 * time.Millisecond, 30 * time.Second

// watchPods asks for pods and namespaces.
func (c *Controller) watchPods(p *pending) error {
	c.pods, c.namespaces = c.watches.Core().V1().Pods().Informer(), c.watches.Core().V1().Namespaces().Informer()
	return c.note(p, c.pods, c.namespaces)
}

// note has what changes in the informers become pending.
func (c *Controller) note(p *pending, infs ...cache.SharedIndexInformer) error {
	add := func(event any) {
		switch o := informer.Object(event).(type) {
		case *corev1.Pod:
			p.add(func(w *work) { w.pods[cache.MetaObjectToName(o)] = true })
		case *corev1.Namespace:
			p.add(func(w *work) { w.namespaces[o.Name] = true })
		case *networkingv1.NetworkPolicy:
			p.add(func(w *work) { w.policies[cache.MetaObjectToName(o)] = true })
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: add, DeleteFunc: add, UpdateFunc: func(_, now any) { add(now) }}
	for _, inf := range infs {
		if _, err := c.watches.Handle(inf, handler); err != nil {
			return fmt.Errorf("network policy: %w", err)
		}
	}
	return nil
}

// watch has flushed rules written anew at once, and new pods looked at before
// the API has their addresses.
func (c *Controller) watch(ctx context.Context, dp Dataplane, p *pending) {
	last, reason, wait := "", "", time.Second
	for ctx.Err() == nil {
		began := time.Now()
		err := dp.Watch(ctx, func(why string) {
			if last == "" || why != reason { // not at each try of a watch that fails
				reason = why
				slog.WarnContext(ctx, "write network policy rules anew", "table", c.cfg.Table, "why", why)
			}
			p.add(func(w *work) { w.all = true })
		}, func(uid string, a netip.Addr) {
			p.add(func(w *work) { w.attached = append(w.attached, attachment{types.UID(uid), a}) })
		})
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > maxWait { // it was well meanwhile
			last, wait = "", time.Second
		}
		if text := fmt.Sprint(err); text != last { // once, not at each try
			last = text
			slog.WarnContext(ctx, "watch the rules of network policies, trying again", "table", c.cfg.Table, "err", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, maxWait)
	}
}
