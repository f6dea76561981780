// Package noderoute is the node-route-controller. It reads Nodes and the cloud
// provider's routes; it makes and deletes routes to nodes' ranges of pod addresses,
// and writes the condition NetworkUnavailable of Nodes.
package noderoute

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"

	"knarr/controlplane/cloudcontrollermanager/instances"
	"knarr/controlplane/cloudcontrollermanager/metrics"
	"knarr/internal/controller"
	"knarr/internal/run"
)

// Name is the controller's.
const Name = "node-route-controller"

const (
	// maxCalls is how many changes the provider is asked for at once.
	maxCalls = 200
	// leastInterval is the shortest time between two comparisons.
	leastInterval = 10 * time.Second
	// rareInterval is the time between two comparisons that no event asks for, where
	// events are what counts.
	rareInterval = 12 * time.Hour
)

// Config is what the controller needs beside the cluster.
type Config struct {
	Routes       cloudprovider.Routes
	ClusterName  string
	ClusterCIDRs []netip.Prefix
	// Period is the time between two comparisons of the provider's routes with the nodes.
	Period time.Duration
	// WatchBased compares after changes of nodes, and hardly without: upstream's gate
	// CloudControllerManagerWatchBasedRoutesReconciliation.
	WatchBased bool
	Metrics    *metrics.Metrics
}

type reconciler struct {
	Config
	nodes  cache.Indexer
	client kubernetes.Interface
	events record.EventRecorder

	mu   sync.Mutex
	seen map[string]routed // by node
	last time.Time         // of the last comparison
}

// routed is what of a node its routes follow.
type routed struct {
	ranges    []string
	addresses []corev1.NodeAddress
}

// all is the only key: routes and nodes are compared as a whole.
const all = "routes"

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder, c Config) *controller.Controller[string] {
	nodes := f.Core().V1().Nodes().Informer()
	r := &reconciler{Config: c, nodes: nodes.GetIndexer(), client: client, events: events, seen: map[string]routed{}}
	return &controller.Controller[string]{
		Name:       Name,
		Sources:    []controller.Source[string]{{Informer: nodes, Keys: r.keys}},
		Feeds:      []func(context.Context, func(), func(string)) error{once},
		RetryDelay: [2]time.Duration{leastInterval, leastInterval},
		Reconcile:  r.reconcile,
	}
}

// once asks for a comparison at the start, which removes routes of a cluster that
// has no nodes left.
func once(ctx context.Context, ready func(), add func(string)) error {
	add(all)
	ready()
	<-ctx.Done()
	return nil
}

// keys asks for a comparison if what routes follow of the node has changed: its
// status changes far more often.
func (r *reconciler) keys(o metav1.Object) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	have, known := r.seen[o.GetName()]
	obj, ok, err := r.nodes.GetByKey(o.GetName())
	if err != nil || !ok {
		delete(r.seen, o.GetName())
		return []string{all}
	}
	node := obj.(*corev1.Node)
	now := routed{node.Spec.PodCIDRs, node.Status.Addresses}
	if known && slices.Equal(have.ranges, now.ranges) && instances.SameAddresses(have.addresses, now.addresses) {
		return nil
	}
	r.seen[o.GetName()] = now
	return []string{all}
}

func (r *reconciler) reconcile(ctx context.Context, _ string) (time.Duration, error) {
	least, next := min(leastInterval, r.Period), r.Period
	if r.WatchBased {
		least, next = leastInterval, rareInterval
	}
	if wait := time.Until(r.last.Add(least)); wait > 0 {
		return wait, nil
	}
	r.last = time.Now()
	if err := r.compare(ctx); err != nil {
		return 0, err
	}
	return next, nil
}

func (r *reconciler) compare(ctx context.Context) error {
	r.Metrics.RouteSyncs.Inc()
	limited, cancel := context.WithTimeout(ctx, instances.Timeout)
	defer cancel()
	routes, err := r.Routes.ListRoutes(limited, r.ClusterName)
	if err != nil {
		return fmt.Errorf("error listing routes: %w", err)
	}
	var nodes []*corev1.Node
	for _, o := range r.nodes.List() {
		nodes = append(nodes, o.(*corev1.Node))
	}
	c := plan(nodes, routes, r.ClusterCIDRs)
	// A route is removed before another one is made: both may be the same one, with
	// other addresses.
	errs := run.Each(Name, maxCalls, len(c.remove), func(i int) error { return r.remove(ctx, c.remove[i]) })
	failed := run.Each(Name, maxCalls, len(c.create), func(i int) error { return r.create(ctx, c.create[i]) })
	lacking := map[types.UID]bool{}
	for i, err := range failed {
		if err != nil {
			lacking[c.create[i].node.UID] = true
		}
	}
	written := run.Each(Name, maxCalls, len(c.nodes), func(i int) error { return r.write(ctx, c.nodes[i], !lacking[c.nodes[i].UID]) })
	return errors.Join(slices.Concat(errs, failed, written)...)
}

// remove deletes a route. The pods of a node that is there would be cut off, so the
// server is asked: the cache may be behind.
func (r *reconciler) remove(ctx context.Context, route *cloudprovider.Route) error {
	if !route.Blackhole && route.TargetNode != "" {
		live, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", string(route.TargetNode)).String()})
		if err != nil {
			return fmt.Errorf("read node %s before its route is deleted: %w", route.TargetNode, err)
		}
		for _, n := range live.Items {
			moved := route.EnableNodeAddresses && !instances.SameAddresses(n.Status.Addresses, route.TargetNodeAddresses)
			if slices.Contains(n.Spec.PodCIDRs, route.DestinationCIDR) && !moved {
				return nil
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, instances.Timeout)
	defer cancel()
	if err := r.Routes.DeleteRoute(ctx, r.ClusterName, route); err != nil {
		return fmt.Errorf("could not delete route %s %s: %w", route.Name, route.DestinationCIDR, err)
	}
	slog.InfoContext(ctx, "deleted a route", "route", route.Name, "range", route.DestinationCIDR)
	return nil
}

func (r *reconciler) create(ctx context.Context, c creation) error {
	limited, cancel := context.WithTimeout(ctx, instances.Timeout)
	defer cancel()
	hint, began := string(c.node.UID), time.Now()
	err := run.Catch(Name, func() error { return r.Routes.CreateRoute(limited, r.ClusterName, hint, c.route) })
	if err == nil {
		return nil
	}
	r.events.Eventf(reference(c.node), corev1.EventTypeWarning, "FailedToCreateRoute", "Could not create route %s %s for node %s after %v: %v",
		hint, c.route.DestinationCIDR, c.node.Name, time.Since(began), err)
	return fmt.Errorf("create route %s for node %s: %w", c.route.DestinationCIDR, c.node.Name, err)
}

// write says in the node's status whether its routes are there.
func (r *reconciler) write(ctx context.Context, node *corev1.Node, created bool) error {
	c, changed := condition(node, created)
	if !changed {
		return nil
	}
	c.LastTransitionTime, c.LastHeartbeatTime = metav1.Now(), metav1.Now()
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID}, "status": map[string]any{"conditions": []corev1.NodeCondition{c}}})
	if err != nil {
		return err
	}
	_, err = r.client.CoreV1().Nodes().PatchStatus(ctx, node.Name, body)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // another node of that name, or none
		return nil
	}
	return err
}

func reference(n *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
}
