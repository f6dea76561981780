package registry

import (
	"context"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1" // its texts describe the columns
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/request"
)

var certificateSigningRequests = &Kind[*certificatesv1.CertificateSigningRequest]{
	GroupVersionKind: certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest"),
	Plural:           "certificatesigningrequests",
	Short:            []string{"csr"},
	Cluster:          true,
	NameRule:         func(string, bool) []string { return nil },

	Prepare: func(ctx context.Context, r, old *certificatesv1.CertificateSigningRequest) {
		if old != nil {
			r.Spec, r.Status = old.Spec, old.Status
			return
		}
		r.Status = certificatesv1.CertificateSigningRequestStatus{}
		setRequestor(&r.Spec, request.UserFrom(ctx))
	},
	Validate: validateSigningRequest,
	Fields: func(r *certificatesv1.CertificateSigningRequest) fields.Set {
		return fields.Set{"spec.signerName": r.Spec.SignerName}
	},
	Columns: []Column[*certificatesv1.CertificateSigningRequest]{
		nameColumn[*certificatesv1.CertificateSigningRequest](),
		ageColumn[*certificatesv1.CertificateSigningRequest](),
		column("SignerName", "string", certificatesv1beta1.CertificateSigningRequestSpec{}.SwaggerDoc()["signerName"], 0,
			func(r *certificatesv1.CertificateSigningRequest) any { return orElse(r.Spec.SignerName, "<none>") }),
		column("Requestor", "string", certificatesv1beta1.CertificateSigningRequestSpec{}.SwaggerDoc()["request"], 0,
			func(r *certificatesv1.CertificateSigningRequest) any { return r.Spec.Username }),
		column("RequestedDuration", "string", certificatesv1beta1.CertificateSigningRequestSpec{}.SwaggerDoc()["expirationSeconds"], 0,
			func(r *certificatesv1.CertificateSigningRequest) any {
				if r.Spec.ExpirationSeconds == nil {
					return "<none>"
				}
				return duration.HumanDuration(time.Duration(*r.Spec.ExpirationSeconds) * time.Second)
			}),
		column("Condition", "string", certificatesv1beta1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"], 0,
			func(r *certificatesv1.CertificateSigningRequest) any { return requestState(r) }),
	},
	Sub: []Subresource[*certificatesv1.CertificateSigningRequest]{
		{
			Name:  "approval",
			Verbs: partVerbs,
			Prepare: func(_ context.Context, r, old *certificatesv1.CertificateSigningRequest) {
				stampConditions(r, old)
				conditions := r.Status.Conditions
				r.Spec, r.Status = old.Spec, old.Status
				r.Status.Conditions = conditions
			},
			Validate: validateRequestApproval,
		},
		statusOf(func(r, old *certificatesv1.CertificateSigningRequest) {
			r.Spec = old.Spec
			keepConditions(r, old, certificatesv1.CertificateApproved)
			keepConditions(r, old, certificatesv1.CertificateDenied)
			stampConditions(r, old)
		}, validateRequestStatus),
	},
}

// setRequestor writes the authenticated user into the request, whatever the object says: signers and approvers
// go by it.
func setRequestor(s *certificatesv1.CertificateSigningRequestSpec, who user.Info) {
	s.Username, s.UID, s.Groups, s.Extra = "", "", nil, nil
	if who == nil {
		return
	}
	s.Username, s.UID, s.Groups = who.GetName(), who.GetUID(), who.GetGroups()
	for k, v := range who.GetExtra() {
		if s.Extra == nil {
			s.Extra = map[string]certificatesv1.ExtraValue{}
		}
		s.Extra[k] = v
	}
}

func requestState(r *certificatesv1.CertificateSigningRequest) string {
	has := map[certificatesv1.RequestConditionType]bool{}
	for _, c := range r.Status.Conditions {
		has[c.Type] = true
	}
	state := "Pending"
	switch {
	case has[certificatesv1.CertificateDenied]:
		state = "Denied"
	case has[certificatesv1.CertificateApproved]:
		state = "Approved"
	}
	if has[certificatesv1.CertificateFailed] {
		state += ",Failed"
	}
	if len(r.Status.Certificate) > 0 {
		state += ",Issued"
	}
	return state
}

// keepConditions makes the conditions of a type what they were, unless a status
// write adds or removes some, which validation tells: decisions are made by
// approval alone.
func keepConditions(r, old *certificatesv1.CertificateSigningRequest, typ certificatesv1.RequestConditionType) {
	var was []certificatesv1.CertificateSigningRequestCondition
	for _, c := range old.Status.Conditions {
		if c.Type == typ {
			was = append(was, c)
		}
	}
	var is []int
	for i, c := range r.Status.Conditions {
		if c.Type == typ {
			is = append(is, i)
		}
	}
	if len(is) != len(was) {
		return
	}
	for n, i := range is {
		r.Status.Conditions[i] = was[n]
	}
}

// stampConditions sets the times that the writer left out.
func stampConditions(r, old *certificatesv1.CertificateSigningRequest) {
	now := metav1.Now()
	for i := range r.Status.Conditions {
		c := &r.Status.Conditions[i]
		if c.LastUpdateTime.IsZero() {
			c.LastUpdateTime = now
		}
		if c.LastTransitionTime.IsZero() {
			c.LastTransitionTime = now
			for _, o := range old.Status.Conditions {
				if o.Type == c.Type && o.Status == c.Status && !o.LastTransitionTime.IsZero() {
					c.LastTransitionTime = o.LastTransitionTime
				}
			}
		}
	}
}
