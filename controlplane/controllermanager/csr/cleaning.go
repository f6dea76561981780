package csr

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Cleaning is the name of the controller that deletes.
const Cleaning = "certificatesigningrequest-cleaner-controller"

// How long requests stay: those decided, and those that nobody decides or signs.
const (
	kept    = time.Hour
	pending = 24 * time.Hour
)

type cleaning struct {
	requests cache.Indexer
	client   kubernetes.Interface
}

// NewCleaning returns the controller that deletes requests that are done.
func NewCleaning(f informers.SharedInformerFactory, client kubernetes.Interface) *controller.Controller[cache.ObjectName] {
	requests := f.Certificates().V1().CertificateSigningRequests().Informer()
	c := &cleaning{requests.GetIndexer(), client}
	return &controller.Controller[cache.ObjectName]{
		Name:      Cleaning,
		Sources:   []controller.Source[cache.ObjectName]{controller.Self(requests)},
		Reconcile: controller.Existing(c.requests, c.reconcile),
	}
}

func (c *cleaning) reconcile(ctx context.Context, r *certificatesv1.CertificateSigningRequest) (time.Duration, error) {
	end, ok := deadline(r)
	if left := time.Until(end); !ok || left > 0 {
		return max(left, 0), nil
	}
	err := c.client.CertificatesV1().CertificateSigningRequests().Delete(ctx, r.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return 0, fmt.Errorf("unable to delete CSR %q: %w", r.Name, err)
	}
	return 0, nil
}

// deadline is when r may go; ok is false if it never may.
func deadline(r *certificatesv1.CertificateSigningRequest) (end time.Time, ok bool) {
	earliest := func(t time.Time, after time.Duration) {
		if t = t.Add(after); !ok || t.Before(end) {
			end, ok = t, true
		}
	}
	if len(r.Status.Conditions) == 0 && !r.CreationTimestamp.IsZero() {
		earliest(r.CreationTimestamp.Time, pending)
	}
	issued := len(r.Status.Certificate) > 0
	for _, c := range r.Status.Conditions {
		stay := kept
		switch c.Type {
		case certificatesv1.CertificateApproved:
			if expires, is := expiry(r.Status.Certificate); is {
				earliest(expires, 0)
			}
			if !issued {
				stay = pending
			}
		case certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
		default:
			continue
		}
		if !c.LastUpdateTime.IsZero() {
			earliest(c.LastUpdateTime.Time, stay)
		}
	}
	return end, ok
}

// expiry is when the first certificate ends.
func expiry(text []byte) (time.Time, bool) {
	block, _ := pem.Decode(text)
	if block == nil {
		return time.Time{}, false
	}
	cert, err := x509.ParseCertificates(block.Bytes)
	if err != nil || len(cert) == 0 {
		return time.Time{}, false
	}
	return cert[0].NotAfter, true
}
