// Package trustbundle is the kube-apiserver-serving-clustertrustbundle-publisher-controller.
// It reads the ClusterTrustBundles of the signer of the API server's certificates, and
// keeps one of them, with the cluster's certificate authority: the others of that signer
// are deleted.
package trustbundle

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1beta1"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1beta1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "kube-apiserver-serving-clustertrustbundle-publisher-controller"

// Signer is whose bundle it is.
const Signer = "kubernetes.io/kube-apiserver-serving"

type bundle = certificatesv1beta1.ClusterTrustBundle

// New returns the controller, which publishes ca, certificates in PEM. It has one key.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, ca []byte) *controller.Controller[string] {
	bundles := f.InformerFor(&bundle{}, own)
	sum := sha256.Sum256(ca)
	r := &reconciler{
		bundles: certificateslisters.NewClusterTrustBundleLister(bundles.GetIndexer()),
		client:  client,
		name:    fmt.Sprintf("%s:%x", strings.ReplaceAll(Signer, "/", ":"), sum[:12]),
		ca:      string(ca),
	}
	only := []string{Signer}
	return &controller.Controller[string]{
		Name:      Name,
		Workers:   1,
		Sources:   []controller.Source[string]{{Informer: bundles, Keys: func(metav1.Object) []string { return only }}},
		Feeds:     []func(context.Context, func(), func(string)) error{once},
		Reconcile: r.reconcile,
	}
}

// once has the bundle made though there is none yet that an event would tell of.
func once(ctx context.Context, ready func(), add func(string)) error {
	add(Signer)
	ready()
	<-ctx.Done()
	return nil
}

// own follows the bundles of this signer alone.
func own(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
	return certificatesinformers.NewFilteredClusterTrustBundleInformer(client, resync, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.signerName", Signer).String()
		})
}

type reconciler struct {
	bundles  certificateslisters.ClusterTrustBundleLister
	client   kubernetes.Interface
	name, ca string
}

func (r *reconciler) reconcile(ctx context.Context, _ string) (time.Duration, error) {
	api := r.client.CertificatesV1beta1().ClusterTrustBundles()
	have, err := r.bundles.Get(r.name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, &bundle{ObjectMeta: metav1.ObjectMeta{Name: r.name},
			Spec: certificatesv1beta1.ClusterTrustBundleSpec{SignerName: Signer, TrustBundle: r.ca}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
	case err == nil && have.Spec.TrustBundle != r.ca:
		next := have.DeepCopy()
		next.Spec.TrustBundle = r.ca
		_, err = api.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		return 0, err
	}
	// Only now: whoever trusts by these has the new one before the old ones are gone.
	all, err := r.bundles.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	var failed error
	for _, b := range all {
		if b.Name == r.name {
			continue
		}
		err := api.Delete(ctx, b.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &b.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			failed = errors.Join(failed, err)
		}
	}
	return 0, failed
}
