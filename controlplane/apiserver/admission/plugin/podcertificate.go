package plugin

import (
	"context"
	"fmt"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/authz"
)

// podCertificateSigning asks for a signer's right before its word on a pod's certificate
// is taken.
type podCertificateSigning struct{ authorizer authz.Authorizer }

func (*podCertificateSigning) Name() string { return "PodCertificateSigning" }

func (p *podCertificateSigning) Validate(ctx context.Context, a *admission.Attributes) error {
	old, ok := a.Old.(*certificatesv1beta1.PodCertificateRequest)
	r, is := a.Object.(*certificatesv1beta1.PodCertificateRequest)
	if !ok || !is || a.Operation != admission.Update || a.Subresource != "status" || equality.Semantic.DeepEqual(old.Status, r.Status) {
		return nil
	}
	of := old.Spec.SignerName
	if signer(ctx, p.authorizer, a, "sign", of) {
		return nil
	}
	return apierrors.NewInvalid(certificatesv1beta1.SchemeGroupVersion.WithKind("PodCertificateRequest").GroupKind(), old.Name, field.ErrorList{
		field.Forbidden(field.NewPath("spec", "signerName"), fmt.Sprintf("User %q is not permitted to \"sign\" for signer %q", a.User.GetName(), of))})
}

// podCertificate lets a node ask for certificates of its own pods alone, in the name of
// their service accounts.
func (n *nodeRestriction) podCertificate(ctx context.Context, node string, a *admission.Attributes) error {
	switch {
	case a.Operation != admission.Create:
		return fmt.Errorf("unexpected operation %v", a.Operation)
	case a.Subresource != "":
		return fmt.Errorf("unexpected subresource %v", a.Subresource)
	}
	r, ok := a.Object.(*certificatesv1beta1.PodCertificateRequest)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.Object)
	}
	s := &r.Spec
	if string(s.NodeName) != node {
		return fmt.Errorf("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", s.NodeName, node)
	}
	is, err := lookup[*corev1.Node](ctx, n.cache, corev1.SchemeGroupVersion.WithResource("nodes"), node, node)
	if err != nil {
		return fmt.Errorf("while retrieving node %q named in the PodCertificateRequest: %w", node, err)
	}
	name := a.Namespace + "/" + s.PodName
	if is.UID != s.NodeUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", name, s.NodeUID, is.UID)
	}
	pod, err := n.stored(ctx, a, s.PodName)
	if err != nil {
		return fmt.Errorf("while retrieving pod %q named in the PodCertificateRequest: %w", name, err)
	}
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case pod.UID != s.PodUID:
		return fmt.Errorf("PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", name, s.PodUID, pod.UID)
	case pod.Spec.NodeName != node:
		return fmt.Errorf("pod %q is not running on node %q named in the PodCertificateRequest", name, node)
	case mirror:
		return fmt.Errorf("pod %q is a mirror pod", name)
	case pod.Spec.ServiceAccountName != s.ServiceAccountName:
		return fmt.Errorf("PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)", name, s.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	account := a.Namespace + "/" + s.ServiceAccountName
	sa, err := lookup[*corev1.ServiceAccount](ctx, n.cache, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), account, s.ServiceAccountName)
	if err != nil {
		return fmt.Errorf("while retrieving service account %q named in the PodCertificateRequest: %w", account, err)
	}
	if sa.UID != s.ServiceAccountUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names service account UID %q, which differs from the running service account (%q)", name, s.ServiceAccountUID, sa.UID)
	}
	return nil
}
