// Package podcertificate is the podcertificaterequest-cleaner-controller. It reads
// PodCertificateRequests and deletes each of them a quarter of an hour after it was made:
// by then whoever asked has the answer.
package podcertificate

import (
	"context"
	"fmt"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "podcertificaterequest-cleaner-controller"

// kept is how long a request stays, upstream's.
const kept = 15 * time.Minute

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface) *controller.Controller[cache.ObjectName] {
	requests := f.Certificates().V1beta1().PodCertificateRequests().Informer()
	return &controller.Controller[cache.ObjectName]{
		Name:    Name,
		Workers: 1,
		Sources: []controller.Source[cache.ObjectName]{controller.Self(requests)},
		Reconcile: controller.Existing(requests.GetIndexer(), func(ctx context.Context, r *certificatesv1beta1.PodCertificateRequest) (time.Duration, error) {
			if left := time.Until(r.CreationTimestamp.Add(kept)); left > 0 {
				return left, nil
			}
			err := client.CertificatesV1beta1().PodCertificateRequests(r.Namespace).Delete(ctx, r.Name,
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return 0, fmt.Errorf("delete PodCertificateRequest %s: %w", cache.MetaObjectToName(r), err)
			}
			return 0, nil
		}),
	}
}
