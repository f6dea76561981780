package cloudnode

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"knarr/controlplane/cloudcontrollermanager/nodeevents"
	"knarr/internal/controller"
)

// An updater asks for the addresses of each node that is initialised once in a
// period, whatever the node's own events.
type updater struct {
	reconciler
	mu    sync.Mutex
	asked map[string]asked // by node
	// round counts the times that instances may have changed.
	round int
}

// asked is when the provider was asked about a node.
type asked struct {
	uid   types.UID
	at    time.Time
	round int
}

// NewUpdater returns the controller that keeps the addresses of nodes.
func NewUpdater(f informers.SharedInformerFactory, client kubernetes.Interface, c Config) *controller.Controller[string] {
	nodes := f.Core().V1().Nodes().Informer()
	u := &updater{reconciler: reconciler{Config: c, nodes: nodes.GetIndexer(), client: client}, asked: map[string]asked{}}
	out := &controller.Controller[string]{
		Name:       Name + ": addresses",
		Sources:    []controller.Source[string]{nodeevents.Source(nodes, matters)},
		RetryDelay: [2]time.Duration{time.Second, max(time.Second, c.UpdateFrequency)},
		Reconcile:  u.reconcile,
	}
	if c.Changed != nil {
		out.Feeds = append(out.Feeds, u.feed(func() {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.round++
		}))
	}
	return out
}

func (u *updater) reconcile(ctx context.Context, name string) (time.Duration, error) {
	obj, ok, err := u.nodes.GetByKey(name)
	if err != nil || !ok {
		u.forget(name)
		return 0, err
	}
	node := obj.(*corev1.Node)
	if tainted(node) {
		return 0, nil
	}
	last, wait := u.due(node, time.Now())
	if wait > 0 {
		return wait, nil
	}
	cloud, err := u.Cloud.Addresses(ctx, node)
	if err != nil {
		return 0, fmt.Errorf("get addresses of node %s from cloud provider: %w", name, err)
	}
	if err := writeAddresses(ctx, u.client, node, cloud); err != nil {
		return 0, controller.IgnoreNotFound(err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked[name] = last
	return u.UpdateFrequency, nil
}

// due says how long the node may wait until it is asked about, and what to note
// when it was.
func (u *updater) due(node *corev1.Node, now time.Time) (asked, time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	next := asked{node.UID, now, u.round}
	if last := u.asked[node.Name]; last.uid == node.UID && last.round == u.round {
		return next, last.at.Add(u.UpdateFrequency).Sub(now)
	}
	return next, 0
}

func (u *updater) forget(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.asked, name)
}
