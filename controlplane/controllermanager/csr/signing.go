// Package csr holds the certificatesigningrequest controllers: one
// approves the requests of kubelets that may have them, one signs what has been
// approved for the API's own signers, one deletes what is done or forgotten.
// They read CertificateSigningRequests, and write those and SubjectAccessReviews.
package csr

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Signing is the name of the controller that signs.
const Signing = "certificatesigningrequest-signing-controller"

// An Authority gives the certificate and the key to sign with now: they may be
// replaced while the controller runs.
type Authority func() (*x509.Certificate, crypto.Signer, error)

// Signers are the authorities of the API's own signers, by signer name.
type Signers map[string]Authority

// All has one authority sign for every signer.
func All(a Authority) Signers {
	s := Signers{}
	for name := range shapes {
		s[name] = a
	}
	return s
}

// Certificates are valid from a little earlier on, because clocks differ. The
// time is taken off the end of those that are valid for long.
const (
	backdate = 5 * time.Minute
	short    = 8 * time.Hour
	shortest = 10 * time.Minute
)

type signing struct {
	requests cache.Indexer
	client   kubernetes.Interface
	signers  Signers
	longest  time.Duration
}

// NewSigning returns the controller that signs for signers, certificates that
// are valid for longest or shorter if the request asks for that.
func NewSigning(f informers.SharedInformerFactory, client kubernetes.Interface, signers Signers, longest time.Duration) *controller.Controller[cache.ObjectName] {
	requests := f.Certificates().V1().CertificateSigningRequests().Informer()
	s := &signing{requests.GetIndexer(), client, signers, longest}
	return &controller.Controller[cache.ObjectName]{
		Name: Signing, Workers: 5,
		Sources:   []controller.Source[cache.ObjectName]{controller.Self(requests)},
		Reconcile: controller.Existing(s.requests, s.reconcile),
	}
}

func (s *signing) reconcile(ctx context.Context, r *certificatesv1.CertificateSigningRequest) (time.Duration, error) {
	authority := s.signers[r.Spec.SignerName]
	if authority == nil || !awaited(r) {
		return 0, nil
	}
	request, err := parse(r.Spec.Request)
	if err != nil {
		return 0, fmt.Errorf("unable to parse csr %q: %w", r.Name, err)
	}
	r = r.DeepCopy()
	if fault := shapes[r.Spec.SignerName](request, r.Spec.Usages); fault != nil {
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue,
			Reason: "SignerValidationFailure", Message: fault.Error(), LastUpdateTime: metav1.Now(),
		})
	} else {
		ca, key, err := authority()
		if err != nil {
			return 0, fmt.Errorf("error auto signing csr: %w", err)
		}
		if r.Status.Certificate, err = sign(request, r.Spec.Usages, life(r.Spec.ExpirationSeconds, s.longest), time.Now(), ca, key); err != nil {
			return 0, fmt.Errorf("error auto signing csr: %w", err)
		}
	}
	if _, err := s.client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, r, metav1.UpdateOptions{}); err != nil {
		return 0, fmt.Errorf("error updating signature for csr: %w", err)
	}
	return 0, nil
}

// awaited reports whether r was approved, and nothing has come of it yet.
func awaited(r *certificatesv1.CertificateSigningRequest) bool {
	approved := false
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case certificatesv1.CertificateApproved:
			approved = true
		case certificatesv1.CertificateDenied:
			return false
		case certificatesv1.CertificateFailed:
			if c.Status == "" || c.Status == corev1.ConditionTrue {
				return false
			}
		}
	}
	return approved && len(r.Status.Certificate) == 0
}

// life is how long a certificate is valid.
func life(asked *int32, longest time.Duration) time.Duration {
	if asked == nil {
		return longest
	}
	// A cluster's longest may be shorter than what is sensible.
	return min(max(time.Duration(*asked)*time.Second, min(shortest, longest)), longest)
}

// sign makes the certificate that request asks for, in PEM.
func sign(request *x509.CertificateRequest, usages []certificatesv1.KeyUsage, life time.Duration, now time.Time, ca *x509.Certificate, key crypto.Signer) ([]byte, error) {
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("unable to verify certificate request signature: %w", err)
	}
	if !now.Before(ca.NotAfter) {
		return nil, fmt.Errorf("refusing to sign a certificate that expired in the past: NotAfter=%v", ca.NotAfter)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: request.Subject, BasicConstraintsValid: true,
		DNSNames: request.DNSNames, IPAddresses: request.IPAddresses, EmailAddresses: request.EmailAddresses, URIs: request.URIs,
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life),
	}
	if life >= short {
		t.NotAfter = t.NotAfter.Add(-backdate)
	}
	if t.NotAfter.After(ca.NotAfter) {
		t.NotAfter = ca.NotAfter
	}
	if t.KeyUsage, t.ExtKeyUsage, err = translate(usages); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca, request.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("failed to sign certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
