package controllermanager

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"knarr/controlplane/controllermanager/csr"
)

// A kubelet's own request is approved, when its roles let it be;
// somebody else's for it is not, and waits. What was
// denied goes in time.
func TestKubeletRequests(t *testing.T) {
	inCluster(t, []string{csr.Approving, csr.Cleaning}, func(c *cluster) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}}}, key)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(name string, as user.Info) {
			client := kubernetes.NewForConfigOrDie(c.server.Config(as))
			_, err := client.CertificatesV1().CertificateSigningRequests().Create(c.ctx, &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
					SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: []certificatesv1.KeyUsage{"digital signature", "client auth"},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		c.grant("system:node-bootstrapper", "system:authenticated")
		c.grant("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes")
		ask("own", &user.DefaultInfo{Name: "system:node:n", Groups: []string{"system:nodes", "system:authenticated"}})
		ask("other", &user.DefaultInfo{Name: "jane", Groups: []string{"system:authenticated"}})
		ask("denied", &user.DefaultInfo{Name: "jane", Groups: []string{"system:authenticated"}})
		requests := c.client.CertificatesV1().CertificateSigningRequests()
		denied, err := requests.Get(c.ctx, "denied", metav1.GetOptions{})
		c.no(err)
		denied.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: "True", Reason: "Test"}}
		_, err = requests.UpdateApproval(c.ctx, "denied", denied, metav1.UpdateOptions{})
		c.no(err)
		for _, step := range []struct {
			wait        time.Duration
			name, state string
		}{
			{time.Second, "own", "AutoApproved"}, {0, "other", "pending"}, {2 * time.Hour, "other", "pending"}, {0, "denied", "gone"},
		} {
			time.Sleep(step.wait)
			got := "pending"
			r, err := requests.Get(c.ctx, step.name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				got = "gone"
			} else if err != nil {
				t.Fatal(err)
			} else if len(r.Status.Conditions) > 0 {
				got = r.Status.Conditions[0].Reason
			}
			if got != step.state {
				t.Errorf("%s is %s, want %s", step.name, got, step.state)
			}
		}
	})
}

// grant gives a cluster role to a group.
func (c *cluster) grant(role, group string) {
	c.Helper()
	_, err := c.client.RbacV1().ClusterRoleBindings().Create(c.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role + "-" + group},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	}, metav1.CreateOptions{})
	c.no(err)
}
