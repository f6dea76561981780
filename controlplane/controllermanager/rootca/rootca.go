// Package rootca is the root-ca-certificate-publisher-controller. It reads
// Namespaces and ConfigMaps and keeps the ConfigMap kube-root-ca.crt with the
// cluster's certificate authority in every namespace.
package rootca

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "root-ca-certificate-publisher-controller"

const (
	configMap   = "kube-root-ca.crt"
	annotation  = "kubernetes.io/description"
	description = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

// New returns the controller, which publishes ca; its keys are namespaces.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, ca []byte) *controller.Controller[string] {
	namespaces, maps := f.Core().V1().Namespaces(), f.InformerFor(&corev1.ConfigMap{}, own)
	r := &reconciler{namespaces.Lister(), corelisters.NewConfigMapLister(maps.GetIndexer()), client, map[string]string{"ca.crt": string(ca)}}
	return &controller.Controller[string]{
		Name:    Name,
		Workers: 4,
		Sources: []controller.Source[string]{
			{Informer: namespaces.Informer(), Keys: func(o metav1.Object) []string { return []string{o.GetName()} }},
			{Informer: maps, Keys: func(o metav1.Object) []string { return []string{o.GetNamespace()} }},
		},
		Reconcile: func(ctx context.Context, namespace string) (time.Duration, error) {
			began := time.Now()
			again, err := r.reconcile(ctx, namespace)
			observe(began, err)
			return again, err
		},
	}
}

// own follows the controller's ConfigMaps alone: those of others may be many, and
// of a megabyte each.
func own(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
	return coreinformers.NewFilteredConfigMapInformer(client, metav1.NamespaceAll, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + configMap })
}

type reconciler struct {
	namespaces corelisters.NamespaceLister
	maps       corelisters.ConfigMapLister
	client     kubernetes.Interface
	data       map[string]string
}

func (r *reconciler) reconcile(ctx context.Context, namespace string) (time.Duration, error) {
	ns, err := r.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) || err == nil && ns.Status.Phase == corev1.NamespaceTerminating {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	api := r.client.CoreV1().ConfigMaps(namespace)
	have, err := r.maps.ConfigMaps(namespace).Get(configMap)
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: configMap, Namespace: namespace, Annotations: map[string]string{annotation: description}},
			Data:       r.data,
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			err = nil
		}
		return 0, err
	case err != nil:
		return 0, err
	case maps.Equal(have.Data, r.data) && have.Annotations[annotation] != "":
		return 0, nil
	}
	next := have.DeepCopy()
	next.Data = r.data
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[annotation] = description
	_, err = api.Update(ctx, next, metav1.UpdateOptions{})
	return 0, err
}
