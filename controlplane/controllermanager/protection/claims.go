package protection

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"

	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/controller"
)

const (
	// Claims is the name of the controller of PersistentVolumeClaims.
	Claims         = "persistentvolumeclaim-protection-controller"
	claimFinalizer = "kubernetes.io/pvc-protection"
)

type claims struct {
	claims, pods cache.Indexer
	client       kubernetes.Interface
}

// NewClaims returns the controller of PersistentVolumeClaims. Its keys are
// namespaces, so that many claims going at once cost one look at the pods.
func NewClaims(f informers.SharedInformerFactory, client kubernetes.Interface) *controller.Controller[string] {
	all, pods := f.Core().V1().PersistentVolumeClaims().Informer(), f.Core().V1().Pods().Informer()
	r := &claims{all.GetIndexer(), pods.GetIndexer(), client}
	return &controller.Controller[string]{
		Name: Claims,
		Sources: []controller.Source[string]{
			{Informer: all, Keys: func(o metav1.Object) []string {
				if unfinished(o, claimFinalizer) {
					return []string{o.GetNamespace()}
				}
				return nil
			}},
			{Informer: pods, Keys: r.waiting},
		},
		Reconcile: r.reconcile,
	}
}

// waiting is the pod's namespace, if one of its claims has something to do.
func (r *claims) waiting(o metav1.Object) []string {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	for _, name := range pods.Claims(pod) {
		if claim, ok, err := r.claims.GetByKey(pod.Namespace + "/" + name); err == nil && ok && unfinished(claim.(*corev1.PersistentVolumeClaim), claimFinalizer) {
			return []string{pod.Namespace}
		}
	}
	return nil
}

func (r *claims) reconcile(ctx context.Context, namespace string) (time.Duration, error) {
	objects, err := r.claims.ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return 0, err
	}
	var todo []*corev1.PersistentVolumeClaim
	for _, o := range objects {
		if claim := o.(*corev1.PersistentVolumeClaim); unfinished(claim, claimFinalizer) {
			todo = append(todo, claim)
		}
	}
	todo, err = r.unused(ctx, namespace, todo)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, claim := range todo {
		claim = claim.DeepCopy()
		finish(claim, claimFinalizer)
		_, err := r.client.CoreV1().PersistentVolumeClaims(namespace).Update(ctx, claim, metav1.UpdateOptions{})
		errs = append(errs, gone(err))
	}
	if len(errs) == 1 {
		return 0, errs[0]
	}
	return 0, errors.Join(errs...)
}

// unused leaves out the claims that go and are used. The cache may not know of
// a pod yet that a node has begun to start, so nothing is let go of before the
// server was asked.
func (r *claims) unused(ctx context.Context, namespace string, all []*corev1.PersistentVolumeClaim) ([]*corev1.PersistentVolumeClaim, error) {
	if len(all) == 0 {
		return nil, nil
	}
	objects, err := r.pods.ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil, err
	}
	using := make([]*corev1.Pod, len(objects))
	for i, o := range objects {
		using[i] = o.(*corev1.Pod)
	}
	left := free(all, using)
	going := 0
	for _, claim := range left {
		if claim.DeletionTimestamp != nil {
			going++
		}
	}
	if going == 0 {
		return left, nil
	}
	list, err := r.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	using = using[:0]
	for i := range list.Items {
		using = append(using, &list.Items[i])
	}
	return free(left, using), nil
}

// free are the claims that stay, and those going that no pod uses.
func free(all []*corev1.PersistentVolumeClaim, using []*corev1.Pod) (left []*corev1.PersistentVolumeClaim) {
	by := map[string]*corev1.PersistentVolumeClaim{}
	for _, claim := range all {
		by[claim.Name] = claim
	}
	for _, pod := range using {
		// Before it has a node, a pod cannot start with a claim that goes.
		if pod.Spec.NodeName == "" {
			continue
		}
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			name := pods.Claim(pod, v)
			if claim := by[name]; claim != nil && claim.DeletionTimestamp != nil && uses(pod, v, claim) {
				delete(by, name)
			}
		}
	}
	for _, claim := range all {
		if by[claim.Name] != nil {
			left = append(left, claim)
		}
	}
	return left
}

// uses reports whether the volume's claim is needed. One made for the pod is not
// once the node is done with the pod, whose own finalizers may wait for it.
func uses(pod *corev1.Pod, v *corev1.Volume, claim *corev1.PersistentVolumeClaim) bool {
	if v.PersistentVolumeClaim != nil {
		return true
	}
	g := pod.DeletionGracePeriodSeconds
	done := pod.DeletionTimestamp != nil && g != nil && *g == 0
	return !done && ephemeral.VolumeIsForPod(pod, claim) == nil
}
