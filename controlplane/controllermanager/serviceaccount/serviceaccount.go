// Package serviceaccount is the serviceaccount-controller. It reads Namespaces
// and ServiceAccounts and creates the ServiceAccount default in every
// namespace.
package serviceaccount

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "serviceaccount-controller"

const defaultName = "default"

// New returns the controller; its keys are namespaces.
func New(f informers.SharedInformerFactory, client kubernetes.Interface) *controller.Controller[string] {
	namespaces, accounts := f.Core().V1().Namespaces(), f.Core().V1().ServiceAccounts()
	r := &reconciler{namespaces.Lister(), accounts.Lister(), client}
	return &controller.Controller[string]{
		Name:    Name,
		Workers: 4,
		Sources: []controller.Source[string]{
			{Informer: namespaces.Informer(), Keys: func(o metav1.Object) []string { return []string{o.GetName()} }},
			{Informer: accounts.Informer(), Keys: func(o metav1.Object) []string {
				if o.GetName() != defaultName {
					return nil
				}
				return []string{o.GetNamespace()}
			}},
		},
		Reconcile: r.reconcile,
	}
}

type reconciler struct {
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
	client     kubernetes.Interface
}

func (r *reconciler) reconcile(ctx context.Context, namespace string) (time.Duration, error) {
	ns, err := r.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) || err == nil && ns.Status.Phase == corev1.NamespaceTerminating {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if _, err := r.accounts.ServiceAccounts(namespace).Get(defaultName); !apierrors.IsNotFound(err) {
		return 0, err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: defaultName, Namespace: namespace}}
	_, err = r.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err) {
		return 0, nil
	}
	return 0, err
}
