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
	taken  []netip.Prefix

	mu    sync.Mutex
	pools []*pool
	given map[string][]netip.Prefix // by node
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder, cfg Config) (*controller.Controller[cache.ObjectName], error) {
	nodes := f.Core().V1().Nodes().Informer()
	r := &reconciler{nodes: nodes.GetIndexer(), client: client, events: events, taken: cfg.Taken, given: map[string][]netip.Prefix{}}
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
		r.pools = append(r.pools, p)
	}
	return &controller.Controller[cache.ObjectName]{
		Name:      Name,
		Workers:   5,
		Sources:   []controller.Source[cache.ObjectName]{controller.Self(nodes)},
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
		delete(r.given, key.Name)
		return 0, nil
	}
	node := obj.(*corev1.Node)
	if len(node.Spec.PodCIDRs) > 0 {
		delete(r.given, node.Name) // the cache knows
		return 0, nil
	}
	if node.DeletionTimestamp != nil || r.given[node.Name] != nil {
		return 0, nil
	}
	ranges, err := r.free()
	if err != nil {
		ref := &corev1.ObjectReference{Kind: "Node", Name: node.Name, UID: types.UID(node.Name)}
		r.events.Eventf(ref, corev1.EventTypeNormal, "CIDRNotAvailable", "Node %s status is now: %s", node.Name, "CIDRNotAvailable")
		return 0, err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"podCIDR": ranges[0], "podCIDRs": ranges},
	})
	if err != nil {
		return 0, err
	}
	// The revision keeps a stale cache from giving a node a second range.
	_, err = r.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, err
	}
	r.given[node.Name] = ranges
	return 0, nil
}

// free finds a range of each pool that no node has.
func (r *reconciler) free() ([]netip.Prefix, error) {
	used := append([]netip.Prefix(nil), r.taken...)
	for _, obj := range r.nodes.List() {
		for _, s := range obj.(*corev1.Node).Spec.PodCIDRs {
			if p, err := netip.ParsePrefix(s); err == nil {
				used = append(used, p)
			}
		}
	}
	for _, ranges := range r.given {
		used = append(used, ranges...)
	}
	out := make([]netip.Prefix, 0, len(r.pools))
	for _, p := range r.pools {
		one, ok := p.free(used)
		if !ok {
			return nil, fmt.Errorf("CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range %s", p.whole)
		}
		out = append(out, one)
	}
	return out, nil
}
