package registry

import (
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

type podCertificate = *certificatesv1beta1.PodCertificateRequest

var podCertificateRequests = &Kind[podCertificate]{
	GroupVersionKind: certificatesv1beta1.SchemeGroupVersion.WithKind("PodCertificateRequest"),
	Plural:           "podcertificaterequests",
	Conditional:      true,

	Default: func(r podCertificate) {
		if r.Spec.MaxExpirationSeconds == nil {
			r.Spec.MaxExpirationSeconds = new(int32(86400))
		}
	},
	Prepare: spec(
		func(r podCertificate) { r.Status = certificatesv1beta1.PodCertificateRequestStatus{} },
		func(r, old podCertificate) { r.Status = old.Status }, nil),
	Validate: validatePodCertificate,
	Fields: func(r podCertificate) fields.Set {
		return fields.Set{"spec.signerName": r.Spec.SignerName, "spec.podName": r.Spec.PodName, "spec.nodeName": string(r.Spec.NodeName)}
	},
	Columns: []Column[podCertificate]{
		nameColumn[podCertificate](),
		podCertificateColumn("PodName", "podName", func(s *certificatesv1beta1.PodCertificateRequestSpec) string { return s.PodName }),
		podCertificateColumn("ServiceAccountName", "serviceAccountName", func(s *certificatesv1beta1.PodCertificateRequestSpec) string { return s.ServiceAccountName }),
		podCertificateColumn("NodeName", "nodeName", func(s *certificatesv1beta1.PodCertificateRequestSpec) string { return string(s.NodeName) }),
		podCertificateColumn("SignerName", "signerName", func(s *certificatesv1beta1.PodCertificateRequestSpec) string { return s.SignerName }),
		column("State", "string", "Is the request Pending, Issued, Denied, or Failed?", 0, func(r podCertificate) any { return podCertificateState(r) }),
		podCertificateColumn("UnverifiedUserAnnotations", "unverifiedUserAnnotations",
			func(s *certificatesv1beta1.PodCertificateRequestSpec) string {
				return labels.FormatLabels(s.UnverifiedUserAnnotations)
			}),
	},
	Sub: []Subresource[podCertificate]{
		statusOf(func(r, old podCertificate) {
			r.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &old.ObjectMeta)
		}, validatePodCertificateStatus),
	},
}

func podCertificateColumn(name, of string, value func(*certificatesv1beta1.PodCertificateRequestSpec) string) Column[podCertificate] {
	return column(name, "string", certificatesv1beta1.PodCertificateRequestSpec{}.SwaggerDoc()[of], 0,
		func(r podCertificate) any { return value(&r.Spec) })
}

// podCertificateState is what a request has come to: of its conditions one alone can be.
func podCertificateState(r podCertificate) string {
	state := "Pending"
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case certificatesv1beta1.PodCertificateRequestConditionTypeIssued, certificatesv1beta1.PodCertificateRequestConditionTypeDenied,
			certificatesv1beta1.PodCertificateRequestConditionTypeFailed:
			state = c.Type
		}
	}
	return state
}

// ended says that nothing more comes of a request.
func ended(r podCertificate) bool {
	for _, c := range r.Status.Conditions {
		if c.Status == metav1.ConditionTrue && podCertificateState(r) != "Pending" {
			return true
		}
	}
	return false
}
