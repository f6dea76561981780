package controllermanager

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/controllermanager/csr"
	"knarr/controlplane/controllermanager/podcertificate"
	"knarr/controlplane/controllermanager/trustbundle"
	"knarr/internal/features"
)

const (
	roles    = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
	requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
)

var authority = sync.OnceValues(func() (*x509.Certificate, error) {
	key := tokenKey()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
})

var kubeletRequest = sync.OnceValues(func() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}}}, key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), err
})

func signing(c *Config) {
	c.Signers = csr.All(func() (*x509.Certificate, crypto.Signer, error) {
		ca, err := authority()
		return ca, tokenKey(), err
	})
}

// request asks for a kubelet's certificate, as its node.
func (c *cluster) request(name string) {
	c.Helper()
	body, err := kubeletRequest()
	c.no(err)
	client := kubernetes.NewForConfigOrDie(c.server.Config(&user.DefaultInfo{Name: "system:node:n", Groups: []string{"system:nodes", "system:authenticated"}}))
	_, err = client.CertificatesV1().CertificateSigningRequests().Create(c.ctx, &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{Request: body, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{"digital signature", "client auth"}}}, metav1.CreateOptions{})
	c.no(err)
}

func grants(c *cluster) {
	c.grant("system:node-bootstrapper", "system:authenticated")
	c.grant("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes")
}

// bootstrapToken makes a token that may sign, and expires.
func (c *cluster) bootstrapToken(id string, in time.Duration) {
	c.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id}, Type: "bootstrap.kubernetes.io/token", StringData: map[string]string{
		"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"}}
	if in > 0 {
		s.StringData["expiration"] = metav1.Now().Truncate(24 * time.Hour).Add(in).UTC().Format(time.RFC3339)
	}
	_, err := c.client.CoreV1().Secrets("kube-system").Create(c.ctx, s, metav1.CreateOptions{})
	c.no(err)
}

// certificateFeatures are those of certificates.k8s.io/v1beta1.
var certificateFeatures = features.Set{features.TrustBundles: true, features.PodCertificates: true}

func servingCertificates(c *apiserver.Config) {
	c.APIs, c.Features = []schema.GroupVersion{certificatesv1beta1.SchemeGroupVersion}, certificateFeatures
}

// bundle makes a trust bundle of the signer of the API server's certificates.
func (c *cluster) bundle(name string) {
	c.Helper()
	ca, err := authority()
	c.no(err)
	_, err = c.client.CertificatesV1beta1().ClusterTrustBundles().Create(c.ctx, &certificatesv1beta1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1beta1.ClusterTrustBundleSpec{SignerName: trustbundle.Signer, TrustBundle: encode(ca)}}, metav1.CreateOptions{})
	c.no(err)
}

func encode(c *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
}

// podRequest asks for a pod's certificate.
func (c *cluster) podRequest(name string) {
	c.Helper()
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, tokenKey())
	c.no(err)
	_, err = c.client.CertificatesV1beta1().PodCertificateRequests("default").Create(c.ctx, &certificatesv1beta1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1beta1.PodCertificateRequestSpec{SignerName: "example.com/signer", PodName: "p", PodUID: "p", ServiceAccountName: "s", ServiceAccountUID: "s",
			NodeName: "n", NodeUID: "n", StubPKCS10Request: stub}}, metav1.CreateOptions{})
	c.no(err)
}

var accountScenarios = []scenario{
	{
		// Days count, of which the first is not tracked whole: a token that is a day old and
		// unused is invalid from the third on, and goes two days later.
		name: "tokens that nobody uses", of: []string{"legacy-serviceaccount-token-cleaner-controller"}, inOrder: true,
		configure: func(c *Config) { c.LegacyTokenUnused = 24 * time.Hour },
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(core+"serviceaccounts", "{metadata: {name: bot}, secrets: [{name: unused}, {name: used}, {name: mounted}]}")
				for _, name := range []string{"unused", "used", "mounted", "manual"} {
					c.create(core+"secrets", "{metadata: {name: "+name+", annotations: {kubernetes.io/service-account.name: bot}}, type: kubernetes.io/service-account-token}")
				}
				c.merge(core+"secrets/used", `{"metadata":{"labels":{"kubernetes.io/legacy-token-last-used":"2100-01-01"}}}`)
				c.create(core+"pods", "{metadata: {name: web}, spec: {containers: [{name: c, image: a}], volumes: [{name: v, secret: {secretName: mounted}}]}}")
			},
			func(*cluster) { time.Sleep(3 * 24 * time.Hour) },
			func(*cluster) { time.Sleep(3 * 24 * time.Hour) },
		},
	},
	{
		name: "trust bundle", of: []string{trustbundle.Name}, serve: servingCertificates,
		configure: func(c *Config) {
			if ca, err := authority(); err == nil {
				c.Features, c.RootCA = certificateFeatures, []byte(encode(ca))
			}
		},
		steps: []func(*cluster){
			func(c *cluster) { c.bundle("kubernetes.io:kube-apiserver-serving:former") },
			func(c *cluster) {
				l, err := c.client.CertificatesV1beta1().ClusterTrustBundles().List(c.ctx, metav1.ListOptions{})
				c.no(err)
				for _, b := range l.Items {
					c.remove("/apis/certificates.k8s.io/v1beta1/clustertrustbundles/" + b.Name)
				}
			},
		},
		recreates: true,
	},
	{
		name: "requests for certificates of pods", of: []string{podcertificate.Name}, serve: servingCertificates, quiet: 20 * time.Minute,
		configure: func(c *Config) { c.Features = certificateFeatures },
		steps: []func(*cluster){
			func(c *cluster) { c.podRequest("a"); c.podRequest("b") },
			func(c *cluster) { c.podRequest("a") },
		},
		inOrder: true,
	},
	{
		name: "service accounts", of: []string{"serviceaccount-controller"}, with: []string{"namespace-controller"}, anew: "/api/v1/namespaces/team/serviceaccounts/default",
		steps: []func(*cluster){
			func(c *cluster) { c.create("/api/v1/namespaces", "{metadata: {name: team}}") },
			func(c *cluster) { c.remove("/api/v1/namespaces/team/serviceaccounts/default") },
		},
		recreates: true,
	},
	{
		name: "root certificates", of: []string{"root-ca-certificate-publisher-controller"}, with: []string{"namespace-controller"},
		steps: []func(*cluster){
			func(c *cluster) { c.create("/api/v1/namespaces", "{metadata: {name: team}}") },
			func(c *cluster) {
				c.merge("/api/v1/namespaces/team/configmaps/kube-root-ca.crt", `{"data":{"ca.crt":"forged"}}`)
			},
			func(c *cluster) { c.remove("/api/v1/namespaces/team/configmaps/kube-root-ca.crt") },
		},
		inOrder: true,
	},
	{
		name: "tokens in Secrets", of: []string{"serviceaccount-token-controller"}, anew: core + "secrets/t",
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(core+"serviceaccounts", "{metadata: {name: bot}}")
				c.create(core+"serviceaccounts", "{metadata: {name: brief}}")
				c.create(core+"secrets", "{metadata: {name: t, annotations: {kubernetes.io/service-account.name: bot}}, type: kubernetes.io/service-account-token}")
				c.create(core+"secrets", "{metadata: {name: u, annotations: {kubernetes.io/service-account.name: brief}}, type: kubernetes.io/service-account-token}")
				c.create(core+"secrets", "{metadata: {name: nobodys, annotations: {kubernetes.io/service-account.name: nobody}}, type: kubernetes.io/service-account-token}")
			},
			func(c *cluster) { c.remove(core + "serviceaccounts/brief") },
		},
		recreates: true,
	},
	{
		name: "aggregated roles", of: []string{"clusterrole-aggregation-controller"}, anew: roles + "/part",
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(roles, "{metadata: {name: whole}, aggregationRule: {clusterRoleSelectors: [{matchLabels: {into: whole}}]}, rules: []}")
				c.create(roles, "{metadata: {name: part, labels: {into: whole}}, rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]}")
			},
			func(c *cluster) {
				c.create(roles, "{metadata: {name: part2, labels: {into: whole}}, rules: [{apiGroups: [''], resources: [nodes], verbs: [get]}]}")
			},
			func(c *cluster) {
				c.merge(roles+"/part", `{"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get"]}]}`)
			},
			func(c *cluster) { c.remove(roles + "/part2") },
		},
	},
	{
		name: "policies checked", of: []string{"validatingadmissionpolicy-status-controller"}, anew: policies + "/p", groups: []string{"apps"},
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(policies, `{metadata: {name: p}, spec: {matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}]}, validations: [{expression: object.spec.foo == 1}]}}`)
			},
			func(c *cluster) {
				c.merge(policies+"/p", `{"spec":{"validations":[{"expression":"object.spec.replicas == 1"}]}}`)
			},
		},
	},
	{
		name: "requests approved", of: []string{csr.Approving},
		steps: []func(*cluster){func(c *cluster) { grants(c); c.request("a"); c.request("b") }},
	},
	{
		name: "requests signed", of: []string{csr.Signing}, with: []string{csr.Approving}, configure: signing,
		steps: []func(*cluster){func(c *cluster) { grants(c); c.request("a"); c.request("b") }},
	},
	{
		name: "requests cleaned", of: []string{csr.Cleaning}, with: []string{csr.Approving, csr.Signing}, configure: signing,
		steps: []func(*cluster){func(c *cluster) { grants(c); c.request("a"); c.request("b") }},
		quiet: 90 * time.Minute,
	},
	{
		name: "tokens that sign", of: []string{"bootstrap-signer-controller"}, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				_, err := c.client.CoreV1().ConfigMaps("kube-public").Create(c.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": "clusters: []\n"}}, metav1.CreateOptions{})
				c.no(err)
				c.bootstrapToken("aaaaaa", 0)
				c.bootstrapToken("bbbbbb", 0)
			},
			func(c *cluster) { c.remove("/api/v1/namespaces/kube-system/secrets/bootstrap-token-aaaaaa") },
			func(c *cluster) {
				c.merge("/api/v1/namespaces/kube-public/configmaps/cluster-info", `{"data":{"kubeconfig":"clusters: [{}]\n"}}`)
			},
		},
	},
	{
		name: "tokens that expire", of: []string{"token-cleaner-controller"},
		steps: []func(*cluster){
			func(c *cluster) {
				c.bootstrapToken("aaaaaa", 2*time.Hour)
				c.bootstrapToken("bbbbbb", 3*time.Hour)
				c.bootstrapToken("cccccc", 0)
			},
		},
		quiet: 4 * time.Hour,
	},
}
