// Package cloudnodelifecycle is the cloud-node-lifecycle-controller. It reads Nodes
// and asks the cloud provider about the instances of those that are not ready; it
// deletes Nodes whose instance is not there any more, and taints those whose instance
// is switched off.
package cloudnodelifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
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

	"knarr/controlplane/cloudcontrollermanager/instances"
	"knarr/controlplane/cloudcontrollermanager/nodeevents"
	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "cloud-node-lifecycle-controller"

// workers are how many providers' answers are waited for at once: one that does not
// come must not keep others from being asked about.
const workers = 8

type reconciler struct {
	nodes  cache.Indexer
	client kubernetes.Interface
	events record.EventRecorder
	cloud  *instances.Asker
	period time.Duration

	mu       sync.Mutex
	absences map[string]absence // by node
}

// absence is since when all answers of the provider were that a node has no instance.
type absence struct {
	uid   types.UID
	since time.Time
}

// New returns the controller. period is how often the provider is asked about a node
// that is not ready.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder, cloud *instances.Asker, period time.Duration) *controller.Controller[string] {
	nodes := f.Core().V1().Nodes().Informer()
	r := &reconciler{nodes: nodes.GetIndexer(), client: client, events: events, cloud: cloud, period: period, absences: map[string]absence{}}
	return &controller.Controller[string]{
		Name:       Name,
		Workers:    workers,
		Sources:    []controller.Source[string]{nodeevents.Source(nodes, matters)},
		RetryDelay: [2]time.Duration{period, max(period, time.Minute)},
		Reconcile:  r.reconcile,
	}
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	obj, ok, err := r.nodes.GetByKey(name)
	if err != nil || !ok {
		r.note(name, "", true)
		return 0, err
	}
	node := obj.(*corev1.Node)
	switch first(node) {
	case untaint:
		r.note(name, node.UID, true)
		return 0, controller.IgnoreNotFound(r.write(ctx, node, taints(node, false)))
	case nothing:
		r.note(name, node.UID, true)
		return 0, nil
	}
	a, err := r.ask(ctx, node)
	if err != nil {
		r.note(name, node.UID, true)
		return 0, err
	}
	switch plan(node, a, r.note(name, node.UID, a.exists), r.period) {
	case remove:
		return r.period, controller.IgnoreNotFound(r.remove(ctx, node))
	case taint:
		return r.period, controller.IgnoreNotFound(r.write(ctx, node, taints(node, true)))
	}
	return r.period, nil
}

func (r *reconciler) ask(ctx context.Context, node *corev1.Node) (a answer, err error) {
	if a.exists, err = r.cloud.Exists(ctx, node); err != nil {
		return a, fmt.Errorf("error checking if node %s exists: %w", node.Name, err)
	}
	if !a.exists {
		return a, nil
	}
	if a.shutdown, err = r.cloud.Shutdown(ctx, node); err != nil {
		return a, fmt.Errorf("error checking if node %s is shutdown: %w", node.Name, err)
	}
	return a, nil
}

// note is for how long the provider has had no instance of a node.
func (r *reconciler) note(name string, uid types.UID, exists bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if exists {
		delete(r.absences, name)
		return 0
	}
	have, known := r.absences[name]
	if !known || have.uid != uid {
		have = absence{uid, time.Now()}
		r.absences[name] = have
	}
	return time.Since(have.since)
}

// remove deletes the Node, if it is on the server what it was when the provider was
// asked: the cache may be behind, a node of that name may be another one, or be
// ready again.
func (r *reconciler) remove(ctx context.Context, asked *corev1.Node) error {
	live, err := r.client.CoreV1().Nodes().Get(ctx, asked.Name, metav1.GetOptions{})
	if err != nil || !sameInstance(live, asked) {
		return err
	}
	slog.InfoContext(ctx, "delete a node that does not exist in the cloud provider", "node", live.Name)
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: live.Name, UID: live.UID}
	r.events.Eventf(ref, corev1.EventTypeNormal, "DeletingNode", "Deleting node %s because it does not exist in the cloud provider", live.Name)
	err = r.client.CoreV1().Nodes().Delete(ctx, live.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		r.events.Eventf(ref, corev1.EventTypeWarning, "DeletingNodeFailed", "Failed deleting node %s: %v", live.Name, err)
	}
	return err
}

// write replaces the taints of the node as it was read.
func (r *reconciler) write(ctx context.Context, node *corev1.Node, want []corev1.Taint) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"taints": want},
	})
	if err == nil {
		_, err = r.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, body, metav1.PatchOptions{})
	}
	return err
}
