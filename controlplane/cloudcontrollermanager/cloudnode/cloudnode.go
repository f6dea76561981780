// Package cloudnode is the cloud-node-controller. It reads Nodes and asks the cloud
// provider about their instances; it writes provider ID, labels and addresses of
// Nodes that were registered with the cloud provider's taint, removes the taint, and
// keeps addresses as the provider says.
package cloudnode

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/retry"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/api"

	"knarr/controlplane/cloudcontrollermanager/instances"
	"knarr/controlplane/cloudcontrollermanager/metrics"
	"knarr/controlplane/cloudcontrollermanager/nodeevents"
	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "cloud-node-controller"

// Config is what it needs beside the cluster.
type Config struct {
	// Cloud is asked.
	Cloud *instances.Asker
	// Changed, if set, calls its argument whenever instances may have changed, until
	// ctx ends.
	Changed func(ctx context.Context, changed func()) error
	// UpdateFrequency is how often addresses are asked for.
	UpdateFrequency time.Duration
	Metrics         *metrics.Metrics
}

type reconciler struct {
	Config
	nodes  cache.Indexer
	client kubernetes.Interface
	events record.EventRecorder
}

// New returns the controller that initialises nodes.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder, c Config) *controller.Controller[string] {
	nodes := f.Core().V1().Nodes().Informer()
	r := &reconciler{c, nodes.GetIndexer(), client, events}
	out := &controller.Controller[string]{
		Name:       Name,
		Sources:    []controller.Source[string]{nodeevents.Source(nodes, matters)},
		RetryDelay: [2]time.Duration{100 * time.Millisecond, time.Minute},
		Reconcile:  r.reconcile,
	}
	if c.Changed != nil {
		out.Feeds = append(out.Feeds, r.feed(nil))
	}
	return out
}

// state is what of a node leads to a question or to a write.
type state struct {
	uid                  types.UID
	tainted              bool
	providerID, provided string
	labels               [6]string
}

func matters(n *corev1.Node) state {
	s := state{uid: n.UID, tainted: tainted(n), providerID: n.Spec.ProviderID, provided: n.Annotations[api.AnnotationAlphaProvidedIPAddr]}
	for i, l := range pairs {
		s.labels[2*i], s.labels[2*i+1] = n.Labels[l.beta], n.Labels[l.stable]
	}
	return s
}

// feed yields every node whenever instances may have changed, after noting it.
func (r *reconciler) feed(note func()) func(ctx context.Context, ready func(), add func(string)) error {
	return func(ctx context.Context, ready func(), add func(string)) error {
		ready()
		return r.Changed(ctx, func() {
			if note != nil {
				note()
			}
			for _, name := range r.nodes.ListKeys() {
				add(name)
			}
		})
	}
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	obj, ok, err := r.nodes.GetByKey(name)
	if err != nil || !ok {
		return 0, err
	}
	node := obj.(*corev1.Node)
	if !tainted(node) {
		return 0, controller.IgnoreNotFound(r.followBeta(ctx, node))
	}
	m, err := r.Cloud.Metadata(ctx, node)
	if err != nil {
		r.events.Eventf(node, corev1.EventTypeWarning, "SyncFailed", "Failed to get instance metadata: %v", err)
		return 0, fmt.Errorf("failed to get instance metadata for node %s: %w", name, err)
	}
	if m == nil { // the provider's way to leave a node alone, for now
		return r.UpdateFrequency, nil
	}
	if _, err := addresses(node, m.NodeAddresses); err != nil {
		return 0, fmt.Errorf("provided node ip for node %q is not valid: %w", name, err)
	}
	return 0, controller.IgnoreNotFound(r.initialise(ctx, node, m))
}

// initialise writes what the instance says: addresses first, so that they are there
// when the taint is not.
func (r *reconciler) initialise(ctx context.Context, node *corev1.Node, m *cloudprovider.InstanceMetadata) error {
	if err := writeAddresses(ctx, r.client, node, m.NodeAddresses); err != nil {
		return err
	}
	uid := node.UID
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		// The cache may be behind, and this write is of what was just changed.
		live, err := r.client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if live.UID != uid || !tainted(live) { // another node of that name, or another writer
			node = nil
			return nil
		}
		node = live
		next, discarded := initialised(live, m)
		if len(discarded) > 0 {
			slog.WarnContext(ctx, "labels of the cloud provider are reserved or taken", "node", live.Name, "labels", discarded)
		}
		_, err = r.client.CoreV1().Nodes().Update(ctx, next, metav1.UpdateOptions{})
		return err
	})
	if err != nil || node == nil {
		return err
	}
	since := time.Since(node.CreationTimestamp.Time).Seconds()
	r.Metrics.TaintRemoval.Observe(since)
	r.Metrics.FirstSync.Observe(since)
	r.events.Event(node, corev1.EventTypeNormal, "Synced", "Node synced successfully")
	return nil
}

// followBeta makes stable labels follow the beta ones.
func (r *reconciler) followBeta(ctx context.Context, node *corev1.Node) error {
	want := stableLabels(node.Labels)
	if len(want) == 0 {
		return nil
	}
	return patch(ctx, r.client, node, map[string]any{"metadata": map[string]any{"uid": node.UID, "labels": want}})
}

// writeAddresses gives the node its instance's addresses, if it has others.
func writeAddresses(ctx context.Context, client kubernetes.Interface, node *corev1.Node, cloud []corev1.NodeAddress) error {
	want, err := addresses(node, cloud)
	if err != nil || want == nil || instances.SameAddresses(want, node.Status.Addresses) {
		return err
	}
	return patch(ctx, client, node, map[string]any{"metadata": map[string]any{"uid": node.UID}, "status": map[string]any{"addresses": want}}, "status")
}

// patch writes to the node as it was read, not to another of its name.
func patch(ctx context.Context, client kubernetes.Interface, node *corev1.Node, change map[string]any, subresources ...string) error {
	body, err := json.Marshal(change)
	if err == nil {
		_, err = client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, body, metav1.PatchOptions{}, subresources...)
	}
	return err
}
