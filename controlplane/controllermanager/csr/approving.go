package csr

import (
	"context"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Approving is the name of the controller that approves.
const Approving = "certificatesigningrequest-approving-controller"

// refused is when a kubelet's request that was not approved is looked at again:
// its rights may have come since.
const refused = time.Minute

type approving struct {
	requests cache.Indexer
	client   kubernetes.Interface
}

// NewApproving returns the controller that approves kubelets' client
// certificates. Those they serve with are for people to approve.
func NewApproving(f informers.SharedInformerFactory, client kubernetes.Interface) *controller.Controller[cache.ObjectName] {
	requests := f.Certificates().V1().CertificateSigningRequests().Informer()
	a := &approving{requests.GetIndexer(), client}
	return &controller.Controller[cache.ObjectName]{
		Name: Approving, Workers: 5,
		Sources:   []controller.Source[cache.ObjectName]{controller.Self(requests)},
		Reconcile: controller.Existing(a.requests, a.reconcile),
	}
}

func (a *approving) reconcile(ctx context.Context, r *certificatesv1.CertificateSigningRequest) (time.Duration, error) {
	asks, err := permissions(r)
	if err != nil || len(asks) == 0 {
		return 0, err
	}
	for _, p := range asks {
		may, err := a.may(ctx, r, p.subresource)
		if err != nil {
			return 0, fmt.Errorf("review access of %s: %w", r.Spec.Username, err)
		}
		if !may {
			continue
		}
		r = r.DeepCopy()
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: p.message,
		})
		if _, err := a.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, r, metav1.UpdateOptions{}); err != nil {
			return 0, fmt.Errorf("error updating approval for csr: %w", err)
		}
		return 0, nil
	}
	return refused, nil
}

// A permission lets its owner's request be approved.
type permission struct{ subresource, message string }

// permissions are those of which r needs one; none if it is not for this
// controller to decide about.
func permissions(r *certificatesv1.CertificateSigningRequest) (p []permission, err error) {
	if r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || len(r.Status.Certificate) > 0 {
		return nil, nil
	}
	for _, c := range r.Status.Conditions {
		if c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied {
			return nil, nil
		}
	}
	request, err := parse(r.Spec.Request)
	if err != nil {
		return nil, fmt.Errorf("unable to parse csr %q: %w", r.Name, err)
	}
	if kubeletClient(request, r.Spec.Usages) != nil {
		return nil, nil
	}
	if r.Spec.Username == request.Subject.CommonName {
		p = append(p, permission{"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."})
	}
	return append(p, permission{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."}), nil
}

// may asks whether who made r may create certificatesigningrequests/subresource.
func (a *approving) may(ctx context.Context, r *certificatesv1.CertificateSigningRequest, subresource string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range r.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	review, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: r.Spec.Username, UID: r.Spec.UID, Groups: r.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: certificatesv1.GroupName, Version: "*", Resource: "certificatesigningrequests", Subresource: subresource, Verb: "create",
			},
		},
	}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed, err
}
