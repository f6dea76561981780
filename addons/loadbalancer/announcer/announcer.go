// Package announcer answers for the addresses of pools on a node's networks: by ARP and
// NDP, so that no link needs the address. Of the nodes that may, one does so for each
// address, the one that holds the address' Lease. It reads AddressPools, Services, Nodes
// and EndpointSlices, and writes those Leases; it reads and writes ARP and NDP packets,
// and asks other nodes' kubelets for a sign of life.
package announcer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"knarr/addons/loadbalancer/addresspool"
	"knarr/internal/informer"
	"knarr/internal/run"
)

// Group are the announcers of all nodes, towards the API server.
const Group = "system:knarr-announcers"

// User is whom the announcer of a node is.
func User(node string) string { return "system:knarr-announcer:" + node }

// Config is what an Announcer needs.
type Config struct {
	// Kube reaches the API server as User(NodeName).
	Kube *rest.Config
	// NodeName is this node's.
	NodeName string

	// space runs what makes sockets in a network namespace; tests have several.
	space func(func() error) error
}

// An Announcer answers for this node's part of the addresses.
type Announcer struct {
	cfg    Config
	client kubernetes.Interface
	served func(context.Context) // returns once the kind is
	pools  cache.SharedIndexInformer
}

// New puts it together; it starts nothing.
func New(c Config) (*Announcer, error) {
	client, err := kubernetes.NewForConfig(c.Kube)
	if err != nil {
		return nil, fmt.Errorf("address announcer: %w", err)
	}
	pools, err := addresspool.NewClient(c.Kube)
	if err != nil {
		return nil, err
	}
	if c.space == nil {
		c.space = func(do func() error) error { return do() }
	}
	return &Announcer{c, client, pools.WaitServed, pools.Informer()}, nil
}

// Run announces until ctx ends. While there is no pool it follows nothing but pools.
func (a *Announcer) Run(ctx context.Context) error {
	a.served(ctx)
	changed := make(chan struct{}, 1)
	if _, err := a.pools.AddEventHandler(each(func() { notify(changed) })); err != nil {
		return err
	}
	var following run.Group
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	following.Go("address pools", func() { a.pools.RunWithContext(ctx) })
	for ctx.Err() == nil {
		if len(a.pools.GetStore().ListKeys()) > 0 {
			if err := a.announce(ctx, changed); err != nil && ctx.Err() == nil {
				return err
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func each(f func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{AddFunc: func(any) { f() }, DeleteFunc: func(any) { f() }, UpdateFunc: func(any, any) { f() }}
}

// A round is what is followed while there are pools.
type round struct {
	*Announcer
	world
	peers *peers
	links *links
	// unsure are addresses that another machine seems to have, since when it was seen.
	unsure map[netip.Addr]time.Time
}

// again is when Leases that could not be written are tried once more, and the networks
// of this node are looked at.
const again = 5 * time.Second

// settle gathers changes that come close together.
const settle = 5 * time.Millisecond

// announce decides anew at each change, until there is no pool any more.
func (a *Announcer) announce(ctx context.Context, changed chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := informers.NewSharedInformerFactoryWithOptions(a.client, 0, informers.WithTransform(slim))
	own := informers.NewSharedInformerFactoryWithOptions(a.client, 0, informers.WithNamespace(Namespace), informers.WithTransform(informer.TrimMetadata))
	r := &round{Announcer: a, unsure: map[netip.Addr]time.Time{}, world: world{
		written: map[string]*coordinationv1.Lease{},
		pools:   a.pools.GetStore(), services: f.Core().V1().Services().Informer().GetStore(), nodes: f.Core().V1().Nodes().Informer().GetStore(),
		slices: f.Discovery().V1().EndpointSlices().Informer().GetStore(), leases: own.Coordination().V1().Leases().Informer().GetStore(),
	}}
	var synced []cache.InformerSynced
	for _, i := range []cache.SharedIndexInformer{f.Core().V1().Services().Informer(), f.Core().V1().Nodes().Informer(), f.Discovery().V1().EndpointSlices().Informer(), own.Coordination().V1().Leases().Informer()} {
		if _, err := i.AddEventHandler(each(func() { notify(changed) })); err != nil {
			return err
		}
		synced = append(synced, i.HasSynced)
	}
	r.peers = newPeers(ctx, func() { notify(changed) })
	defer r.peers.close()
	contested := make(chan netip.Addr, 16)
	r.links = newLinks(a.cfg.space, contested)
	defer r.links.close()
	defer f.Shutdown()
	defer own.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	f.StartWithContext(ctx)
	own.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	defer r.release()
	for timer := time.NewTimer(again); ; {
		r.reconcile(ctx)
		if len(r.world.pools.ListKeys()) == 0 {
			return nil
		}
		select {
		case <-changed:
			time.Sleep(settle)
		case address := <-contested:
			r.contested(ctx, address)
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		timer.Reset(again)
	}
}

// reconcile takes the Leases that are this node's to take, and answers for what it holds.
func (r *round) reconcile(ctx context.Context) {
	fronts := r.fronts()
	r.peers.set(r.probed(fronts, r.cfg.NodeName))
	mine := map[netip.Addr][]string{}
	for address, front := range fronts {
		lease := r.lease(address)
		holder := holderOf(lease)
		if holder != r.cfg.NodeName && takes(r.cfg.NodeName, front.candidates, holder, r.peers.alive) {
			if err := r.take(ctx, address, lease); err != nil {
				slog.DebugContext(ctx, "take the lease of a load balancer's address", "address", address, "err", err) // another one has it
				continue
			}
			slog.InfoContext(ctx, "this node answers for a load balancer's address", "address", address, "before", holder)
			holder = r.cfg.NodeName
			delete(r.unsure, address)
		}
		if _, unsure := r.unsure[address]; holder == r.cfg.NodeName && !unsure && !front.silent {
			mine[address] = front.interfaces
		}
	}
	for address := range r.unsure {
		if _, there := fronts[address]; !there {
			delete(r.unsure, address)
		}
	}
	for name := range r.written {
		if a, _ := AddressOf(name); fronts[a].candidates == nil { // its Lease goes too
			delete(r.written, name)
		}
	}
	r.links.set(mine)
}

// take makes this node the holder of an address' Lease, unless it has changed since.
func (r *round) take(ctx context.Context, address netip.Addr, have *coordinationv1.Lease) error {
	leases := r.client.CoordinationV1().Leases(Namespace)
	now := metav1.NowMicro()
	if have == nil {
		made, err := leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: LeaseName(address), Namespace: Namespace},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &r.cfg.NodeName, AcquireTime: &now, LeaseTransitions: new(int32(0))},
		}, metav1.CreateOptions{})
		return r.note(made, err)
	}
	next := have.DeepCopy()
	next.Spec.HolderIdentity, next.Spec.AcquireTime = &r.cfg.NodeName, &now
	transitions := int32(1)
	if have.Spec.LeaseTransitions != nil {
		transitions += *have.Spec.LeaseTransitions
	}
	next.Spec.LeaseTransitions = &transitions
	made, err := leases.Update(ctx, next, metav1.UpdateOptions{})
	return r.note(made, err)
}

// note has this node know of its own write before the watch tells of it.
func (r *round) note(lease *coordinationv1.Lease, err error) error {
	if err == nil {
		r.written[lease.Name] = lease
	}
	return err
}

// contested is told of a packet in which another machine says that an address is its
// own. Who holds the Lease says so again; who does not, or cannot know, is silent.
func (r *round) contested(ctx context.Context, address netip.Addr) {
	if last, is := r.unsure[address]; is && time.Since(last) < time.Second {
		return
	}
	limited, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	lease, err := r.client.CoordinationV1().Leases(Namespace).Get(limited, LeaseName(address), metav1.GetOptions{})
	if err == nil && holderOf(lease) == r.cfg.NodeName {
		delete(r.unsure, address)
		r.links.again(address)
		return
	}
	slog.WarnContext(ctx, "another machine answers for a load balancer's address", "address", address, "holder", holderOf(lease), "err", err)
	r.unsure[address] = time.Now()
	if err != nil { // looked at again
		run.AfterFunc("contested address", 2*time.Second, func() { r.links.askAgain(address) })
	}
}

// release gives the Leases back when this process ends, so that others need not wait.
func (r *round) release() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for address, front := range r.fronts() {
		lease := r.lease(address)
		if holderOf(lease) != r.cfg.NodeName || len(front.candidates) < 2 {
			continue
		}
		next := lease.DeepCopy()
		next.Spec.HolderIdentity = nil
		if _, err := r.client.CoordinationV1().Leases(Namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			slog.Debug("give the lease of a load balancer's address back", "address", address, "err", err)
		}
	}
}

func holderOf(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}
