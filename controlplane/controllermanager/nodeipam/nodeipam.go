// Package nodeipam is the node-ipam-controller. It reads Nodes and writes
// spec.podCIDRs: the range of pod addresses of each node.
package nodeipam

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "node-ipam-controller"

// Config says what to give out.
type Config struct {
	// ClusterCIDRs are the ranges to cut, one per address family.
	ClusterCIDRs []netip.Prefix
	// Taken are never given out.
	Taken []netip.Prefix
	// MaskIPv4 and MaskIPv6 are the sizes of a node's ranges. Default 24 and 64.
	MaskIPv4, MaskIPv6 int
}

type reconciler struct {
	nodes  cache.Indexer
	client kubernetes.Interface
	events record.EventRecorder

	mu    sync.Mutex
	given map[string]grant // by node

	// held guards what follows; mu may be held before it.
	held  sync.Mutex
	pools []*pool
	// shown are the ranges of nodes in the cache, all of which are taken from the
	// pools: looking at all nodes for each new one would be quadratic.
	shown map[string][]netip.Prefix
}

// A grant is what a node gets that the cache does not show yet. A node deleted and
// made anew between two looks bears the same name and another UID.
type grant struct {
	uid    types.UID
	ranges []netip.Prefix
	// written says that the server has confirmed it. Until then nobody else gets
	// the ranges either: the answer may be lost and the write not.
	written bool
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder, cfg Config) (*controller.Controller[cache.ObjectName], error) {
	nodes := f.Core().V1().Nodes().Informer()
	r := &reconciler{nodes: nodes.GetIndexer(), client: client, events: events, given: map[string]grant{}, shown: map[string][]netip.Prefix{}}
	for _, c := range cfg.ClusterCIDRs {
		size, standard := cfg.MaskIPv4, 24
		if c.Addr().Is6() {
			size, standard = cfg.MaskIPv6, 64
		}
		if size == 0 {
			size = max(standard, c.Bits())
		}
		p, err := newPool(c, size)
		if err != nil {
			return nil, err
		}
		most.WithLabelValues(p.whole.String()).Set(float64(p.size()))
		for _, q := range cfg.Taken {
			p.take(q, 1)
		}
		r.pools = append(r.pools, p)
	}
	return &controller.Controller[cache.ObjectName]{
		Name:      Name,
		Workers:   5,
		Sources:   []controller.Source[cache.ObjectName]{{Informer: nodes, Keys: r.show}},
		Reconcile: r.reconcile,
	}, nil
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock() // giving out is a matter of microseconds, but for the write
	obj, ok, err := r.nodes.GetByKey(key.String())
	if err != nil {
		return 0, err
	}
	if !ok {
		r.drop(key.Name)
		return 0, nil
	}
	node := obj.(*corev1.Node)
	if len(node.Spec.PodCIDRs) > 0 {
		r.show(node) // before the grant goes: its ranges are never nobody's
		r.drop(node.Name)
		return 0, nil
	}
	g := r.given[node.Name]
	if g.uid != node.UID {
		r.drop(node.Name) // of a former node of that name
		g = grant{uid: node.UID}
	}
	if node.DeletionTimestamp != nil || g.written {
		return 0, nil
	}
	if g.ranges == nil {
		if g.ranges, err = r.free(); err != nil {
			ref := &corev1.ObjectReference{Kind: "Node", Name: node.Name, UID: types.UID(node.Name)}
			r.events.Eventf(ref, corev1.EventTypeNormal, "CIDRNotAvailable", "Node %s status is now: %s", node.Name, "CIDRNotAvailable")
			return 0, err
		}
	}
	r.grant(node.Name, g)
	if err := r.write(ctx, node, g.ranges); err != nil {
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		return 0, err
	}
	g.written = true
	r.given[node.Name] = g
	return 0, nil
}

// write gives a node its ranges. Its revision and UID keep a stale cache from
// giving it second ones, or another node of its name the first.
func (r *reconciler) write(ctx context.Context, node *corev1.Node, ranges []netip.Prefix) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion, "uid": node.UID},
		"spec":     map[string]any{"podCIDR": ranges[0], "podCIDRs": ranges},
	})
	if err != nil {
		return err
	}
	_, err = r.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// grant notes what a node gets.
func (r *reconciler) grant(name string, g grant) {
	r.drop(name)
	r.given[name] = g
	r.held.Lock()
	defer r.held.Unlock()
	r.take(g.ranges, 1)
}

// drop forgets what a node gets.
func (r *reconciler) drop(name string) {
	r.held.Lock()
	defer r.held.Unlock()
	r.take(r.given[name].ranges, -1)
	delete(r.given, name)
}

// take notes that one more has the ranges, or with -1 one fewer.
func (r *reconciler) take(ranges []netip.Prefix, by int) {
	for _, q := range ranges {
		for _, p := range r.pools {
			p.take(q, by)
		}
	}
}

// show takes the ranges that the cache shows of a node, in place of those it showed
// before, and names the node.
func (r *reconciler) show(o metav1.Object) []cache.ObjectName {
	key := cache.MetaObjectToName(o)
	r.held.Lock()
	defer r.held.Unlock()
	obj, there, err := r.nodes.GetByKey(key.String())
	if err != nil {
		return []cache.ObjectName{key}
	}
	var now []netip.Prefix
	if there {
		for _, s := range obj.(*corev1.Node).Spec.PodCIDRs {
			if q, err := netip.ParsePrefix(s); err == nil {
				now = append(now, q)
			}
		}
	}
	r.take(now, 1)
	r.take(r.shown[key.Name], -1)
	if r.shown[key.Name] = now; now == nil {
		delete(r.shown, key.Name)
	}
	return []cache.ObjectName{key}
}

// free finds a range of each pool that no node has.
func (r *reconciler) free() ([]netip.Prefix, error) {
	r.held.Lock()
	defer r.held.Unlock()
	out := make([]netip.Prefix, 0, len(r.pools))
	for _, p := range r.pools {
		one, ok := p.free()
		if !ok {
			return nil, fmt.Errorf("CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range %s", p.whole)
		}
		out = append(out, one)
	}
	return out, nil
}
