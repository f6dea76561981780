package registry

import (
	"reflect"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/request"
)

// TestKeepConditions: a status write cannot change a decision; one that adds or
// removes a decision is left for validation to refuse.
func TestKeepConditions(t *testing.T) {
	approved := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "a", LastUpdateTime: metav1.NewTime(time.Unix(7, 5))}
	changed, issued := approved, approved
	changed.Reason, changed.LastUpdateTime = "b", metav1.NewTime(time.Unix(7, 0))
	issued.Type = "Issued"
	type list = []certificatesv1.CertificateSigningRequestCondition
	for name, c := range map[string]struct{ was, is, want list }{
		"changed":    {list{approved}, list{issued, changed}, list{issued, approved}},
		"added":      {nil, list{changed}, list{changed}},
		"removed":    {list{approved}, list{issued}, list{issued}},
		"other kind": {nil, list{issued}, list{issued}},
	} {
		old, r := &certificatesv1.CertificateSigningRequest{}, &certificatesv1.CertificateSigningRequest{}
		old.Status.Conditions, r.Status.Conditions = c.was, c.is
		keepConditions(r, old, certificatesv1.CertificateApproved)
		if !same(r.Status.Conditions, c.want) {
			t.Errorf("%s: %v", name, r.Status.Conditions)
		}
	}
}

// TestRequestor: approvers rely on the authenticated user, so a client cannot set it.
func TestRequestor(t *testing.T) {
	r := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		Username: "system:node:a", UID: "forged", Groups: []string{"system:nodes"},
		Extra: map[string]certificatesv1.ExtraValue{"forged": {"x"}}}}
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "bob", Extra: map[string][]string{"k": {"v"}}})
	certificateSigningRequests.PrepareObject(ctx, r, nil)
	want := certificatesv1.CertificateSigningRequestSpec{Username: "bob", Extra: map[string]certificatesv1.ExtraValue{"k": {"v"}}}
	if !reflect.DeepEqual(r.Spec, want) {
		t.Errorf("got %+v, want %+v", r.Spec, want)
	}
}
