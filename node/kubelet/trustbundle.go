package kubelet

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// trustBundle is what a volume gets of one ClusterTrustBundle, or of those of a signer
// that are selected: each certificate once, in PEM. Without a selector that are none.
func (k *Kubelet) trustBundle(ctx context.Context, p *corev1.ClusterTrustBundleProjection) (string, error) {
	optional := p.Optional != nil && *p.Optional
	api := k.client.CertificatesV1beta1().ClusterTrustBundles()
	if p.Name != nil {
		b, err := api.Get(ctx, *p.Name, metav1.GetOptions{})
		switch {
		case optional && isAbsent(err):
			return "", nil
		case err != nil:
			return "", fmt.Errorf("while getting ClusterTrustBundle: %w", err)
		}
		return anchors(*b), nil
	}
	if p.SignerName == nil {
		return "", errors.New("either name or signerName must be specified")
	}
	selector, err := metav1.LabelSelectorAsSelector(p.LabelSelector)
	if err != nil {
		return "", fmt.Errorf("while parsing label selector: %w", err)
	}
	var found []certificatesv1beta1.ClusterTrustBundle
	if p.LabelSelector != nil {
		l, err := api.List(ctx, metav1.ListOptions{LabelSelector: selector.String(),
			FieldSelector: fields.OneTermEqualSelector("spec.signerName", *p.SignerName).String()})
		if err != nil {
			return "", fmt.Errorf("while listing ClusterTrustBundles matching label selector %v: %w", selector, err)
		}
		found = l.Items
	}
	if len(found) == 0 && !optional {
		return "", errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")
	}
	return anchors(found...), nil
}

// isAbsent says that the API server knows of no such object. One that does not serve its
// kind answers 404 too, and says nothing of the object: a file that is there stays.
func isAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// anchors are the certificates of some bundles, each once. Their order says nothing but
// stays the same, so that a file of them changes only with them.
func anchors(bundles ...certificatesv1beta1.ClusterTrustBundle) string {
	var all []string
	for i := range bundles {
		rest := []byte(bundles[i].Spec.TrustBundle)
		for {
			var b *pem.Block
			if b, rest = pem.Decode(rest); b == nil {
				break
			}
			all = append(all, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.Bytes})))
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "")
}
