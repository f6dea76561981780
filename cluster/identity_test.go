package cluster

import (
	"net/netip"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/internal/apitest"
)

// certified is a server that has not begun, as far as its certificates need it.
func certified(t *testing.T) *Server {
	o := Options{HTTPSListenPort: 6443, BindAddress: "127.0.0.1"}
	o.DataDir, o.NodeName, o.ClusterDomain = t.TempDir(), "n", "cluster.local"
	o.nodeIPs, o.advertise, o.serviceCIDRs = addresses{netip.MustParseAddr("10.0.0.7")}, netip.MustParseAddr("10.0.0.7"), ranges{netip.MustParsePrefix("10.43.0.0/16")}
	return NewServer(o)
}

// TestIdentityTowardsKubelets: the API server comes to kubelets as a user who may
// do that and nothing else, also in a cluster whose certificates are of an
// earlier version, which made it one who may do everything.
func TestIdentityTowardsKubelets(t *testing.T) {
	s := certified(t)
	ca, err := openAuthority(s.layout, "ca")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.issue(s.layout, leaf{name: "apiserver-kubelet-client", user: "kube-apiserver-kubelet-client", groups: []string{user.SystemPrivilegedGroup}}); err != nil {
		t.Fatal(err)
	}
	certs, err := s.certificates()
	if err != nil {
		t.Fatal(err)
	}
	shown, err := certs.kubeletClient.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	subject := shown.Leaf.Subject
	if subject.CommonName != "kube-apiserver-kubelet-client" || len(subject.Organization) > 0 {
		t.Errorf("the API server comes to kubelets as %q of %q", subject.CommonName, subject.Organization)
	}

	api, _ := apitest.New(t)
	for _, c := range []struct {
		verb, resource, sub string
		want                bool
	}{
		{"get", "nodes", "proxy", true}, {"create", "nodes", "proxy", true}, {"get", "nodes", "metrics", true},
		{"get", "nodes", "stats", true}, {"get", "nodes", "log", true}, {"get", "nodes", "pods", true}, {"get", "nodes", "configz", true},
		{"get", "secrets", "", false}, {"create", "pods", "", false}, {"delete", "nodes", "", false},
	} {
		r, err := api.Client(t).AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: subject.CommonName, Groups: append([]string{user.AllAuthenticated}, subject.Organization...),
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: c.verb, Resource: c.resource, Subresource: c.sub, Name: "n"},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Status.Allowed != c.want {
			t.Errorf("%s %s/%s: allowed %v, want %v", c.verb, c.resource, c.sub, r.Status.Allowed, c.want)
		}
	}
}
