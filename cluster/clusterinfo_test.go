package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"knarr/controlplane/controllermanager/bootstraptoken"
	"knarr/internal/apitest"
	"knarr/internal/run"
)

const infoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"

// testAuthority is a new CA; each has the name of a cluster's.
func testAuthority(t testing.TB) *authority {
	t.Helper()
	ca, err := openAuthority(layout{t.TempDir()}, "ca")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// otherPEM is an authority of another name.
func otherPEM(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: serial(), Subject: pkix.Name{CommonName: "the office"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// infoText is a kubeconfig with one cluster of no name.
func infoText(t testing.TB, server string, ca []byte) string {
	t.Helper()
	b, err := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{"": {Server: server, CertificateAuthorityData: ca}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestClusterInfoKubeconfig(t *testing.T) {
	const here, before, balancer = "https://192.0.2.1:6443", "https://192.0.2.7:6443", "https://k8s.example.com:443"
	ca, old, other := testAuthority(t), testAuthority(t).pem, otherPEM(t)
	c := &clusterInfo{server: here, ca: ca}
	both := append(append([]byte{}, old...), ca.pem...)
	for name, v := range map[string]struct{ have, want string }{
		"none yet":                        {"", infoText(t, here, ca.pem)},
		"as published":                    {infoText(t, here, ca.pem), infoText(t, here, ca.pem)},
		"the authority before":            {infoText(t, here, old), infoText(t, here, ca.pem)},
		"one of another name, same place": {infoText(t, here, other), infoText(t, here, ca.pem)},
		"a user's address":                {infoText(t, balancer, ca.pem), infoText(t, balancer, ca.pem)},
		"a user's address, stale":         {infoText(t, balancer, old), infoText(t, balancer, ca.pem)},
		"old and new while they change":   {infoText(t, balancer, both), infoText(t, balancer, both)},
		"a user's address and authority":  {infoText(t, balancer, other), infoText(t, balancer, other)},
		"authorities of the system":       {infoText(t, here, nil), infoText(t, here, nil)},
		"the address before":              {infoText(t, before, ca.pem), infoText(t, here, ca.pem)},
		"the address before, stale":       {infoText(t, before, old), infoText(t, here, ca.pem)},
		"no certificate":                  {infoText(t, here, []byte("x")), infoText(t, here, []byte("x"))},
		"no kubeconfig":                   {"5b7c", "5b7c"},
		"no clusters":                     {"# mine\nclusters: []\n", "# mine\nclusters: []\n"},
	} {
		got, err := c.kubeconfig(v.have, before)
		if err != nil || got != v.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, v.want)
		}
	}
}

// TestClusterInfo: who is nobody reads cluster-info, and only that; every token's
// signature is in it; an authority that changes is followed, and a role that a user
// took away stays away.
func TestClusterInfo(t *testing.T) {
	ca, next := testAuthority(t), testAuthority(t)
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		client := api.Client(t)
		var parts run.Group
		defer parts.Wait()
		defer cancel()
		parts.Go("signer", func() {
			if err := bootstraptoken.NewSigner(client).Run(ctx); err != nil {
				t.Error(err)
			}
		})
		publish := func(ca *authority) {
			t.Helper()
			if err := (&clusterInfo{client, "https://192.0.2.1:6443", ca}).publish(ctx); err != nil {
				t.Fatal(err)
			}
		}
		info := func() *corev1.ConfigMap {
			t.Helper()
			time.Sleep(time.Second) // the signer follows
			m, err := client.CoreV1().ConfigMaps("kube-public").Get(ctx, "cluster-info", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		publish(ca)
		if _, err := client.CoreV1().Secrets("kube-system").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-aaaaaa"}, Type: "bootstrap.kubernetes.io/token", StringData: map[string]string{
			"token-id": "aaaaaa", "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		first := info()
		signature := first.Data["jws-kubeconfig-aaaaaa"]
		if signature == "" || first.Data["kubeconfig"] != infoText(t, "https://192.0.2.1:6443", ca.pem) {
			t.Errorf("published: %v", first.Data)
		}
		asNobody(t, api, map[string]int{
			"GET " + infoPath: http.StatusOK, "DELETE " + infoPath: http.StatusForbidden, "PATCH " + infoPath: http.StatusForbidden,
			"GET " + strings.TrimSuffix(infoPath, "/cluster-info"):                    http.StatusUnauthorized,
			"GET " + strings.Replace(infoPath, "cluster-info", "kube-root-ca.crt", 1): http.StatusUnauthorized,
		})

		publish(ca)
		if again := info(); again.ResourceVersion != first.ResourceVersion {
			t.Errorf("a second start wrote: %v", again.Data)
		}
		if err := client.RbacV1().RoleBindings("kube-public").Delete(ctx, clusterInfoRole, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		publish(next)
		if m := info(); m.Data["kubeconfig"] != infoText(t, "https://192.0.2.1:6443", next.pem) || m.Data["jws-kubeconfig-aaaaaa"] == signature || m.Data["jws-kubeconfig-aaaaaa"] == "" {
			t.Errorf("with the next authority: %v", m.Data)
		}
		asNobody(t, api, map[string]int{"GET " + infoPath: http.StatusForbidden})
	})
}

// TestClusterInfoFollows: the address of a server that is no more gives way to that of
// one that is, and no other does.
func TestClusterInfoFollows(t *testing.T) {
	ca := testAuthority(t)
	const first, second = "https://192.0.2.1:6443", "https://192.0.2.2:6443"
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithCancel(t.Context())
		client := api.Client(t)
		slices, maps := client.DiscoveryV1().EndpointSlices("default"), client.CoreV1().ConfigMaps("kube-public")
		serve := func(addresses ...string) {
			t.Helper()
			slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, AddressType: discoveryv1.AddressTypeIPv4,
				Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(6443))}}}
			for _, a := range addresses {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
			}
			if err := slices.Delete(ctx, "kubernetes", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			if _, err := slices.Create(ctx, slice, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		published := func(want string) {
			t.Helper()
			time.Sleep(2 * followPeriod)
			m, err := maps.Get(ctx, "cluster-info", metav1.GetOptions{})
			if err != nil || m.Data["kubeconfig"] != infoText(t, want, ca.pem) {
				t.Errorf("%v, published %v, want %s", err, m.Data, want)
			}
		}
		serve("192.0.2.1", "192.0.2.2")
		var loops run.Group
		defer loops.Wait()
		defer cancel()
		for _, server := range []string{first, second} {
			c := &clusterInfo{client, server, ca}
			if err := c.publish(ctx); err != nil {
				t.Fatal(err)
			}
			if server == second { // the first one is about to end
				loops.Go("follow", func() { c.follow(ctx) })
			}
		}
		published(first)
		serve("192.0.2.2")
		published(second)

		m, err := maps.Get(ctx, "cluster-info", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m.Data["kubeconfig"] = infoText(t, first, ca.pem) // now a user's
		if _, err := maps.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		published(first)
		if err := maps.Delete(ctx, "cluster-info", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * followPeriod)
		if _, err := maps.Get(ctx, "cluster-info", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("what a user removed came back: %v", err)
		}
	})
}

// asNobody asks without credentials.
func asNobody(t *testing.T, api *apitest.Server, want map[string]int) {
	t.Helper()
	for ask, code := range want {
		verb, path, _ := strings.Cut(ask, " ")
		w := httptest.NewRecorder()
		if api.Handler().ServeHTTP(w, httptest.NewRequest(verb, path, nil)); w.Code != code {
			t.Errorf("%s: %d %s, want %d", ask, w.Code, w.Body, code)
		}
	}
}
