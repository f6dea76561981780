package ingress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/references"
)

// now is the time of tests.
var now = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

var testKey = sync.OnceValue(func() *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return k
})

// keyPair is a certificate for these names that ends at that time, and its key.
func keyPair(t testing.TB, ends time.Time, names ...string) (cert, key []byte) {
	t.Helper()
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cert of " + strings.Join(names, " ")}, DNSNames: names,
		NotBefore: now.Add(-time.Hour), NotAfter: ends, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, testKey().Public(), testKey())
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(testKey())
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}

// A cluster is what the tests compile from: the Services web, canary, errors and secure,
// and some Secrets.
type cluster struct {
	t        testing.TB
	services map[types.NamespacedName]*corev1.Service
	secrets  map[types.NamespacedName]*corev1.Secret
	maps     map[types.NamespacedName]*corev1.ConfigMap
	standard *tls.Certificate
	all      []*networkingv1.Ingress
}

func named(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func newCluster(t testing.TB) *cluster {
	c := &cluster{t: t, services: map[types.NamespacedName]*corev1.Service{}, secrets: map[types.NamespacedName]*corev1.Secret{}, maps: map[types.NamespacedName]*corev1.ConfigMap{}}
	for _, name := range []string{"web", "canary", "errors", "other"} {
		c.service("default", name, corev1.ServicePort{Name: "http", Port: 80}, corev1.ServicePort{Name: "admin", Port: 9000})
	}
	c.service("auth", "proxy", corev1.ServicePort{Port: 4180})
	c.service("default", "outside").Spec.Type = corev1.ServiceTypeExternalName
	c.service("default", "h2", corev1.ServicePort{Port: 80, AppProtocol: new("kubernetes.io/h2c")})
	cert, key := keyPair(t, now.Add(24*time.Hour), "a.example", "*.b.example")
	c.secret("tls", map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": cert})
	cert, key = keyPair(t, now.Add(-time.Minute), "a.example")
	c.secret("expired", map[string][]byte{"tls.crt": cert, "tls.key": key})
	c.secret("users", map[string][]byte{"auth": []byte("ada:$apr1$x$y\n# \nbob:{SHA}abc=\n")})
	c.secret("map", map[string][]byte{"eve": []byte("{SHA}xyz=")})
	c.secret("empty", nil)
	c.maps[named("default", "headers")] = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "headers"}, Data: map[string]string{"X-B": "2", "X-A": "1", "bad name": "3"}}
	cert, key = keyPair(t, now.Add(time.Hour), "default")
	pair, err := parseCertificate(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	c.standard = pair
	return c
}

func (c *cluster) service(namespace, name string, ports ...corev1.ServicePort) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{Ports: ports, ClusterIP: "10.43.0.9"}}
	c.services[named(namespace, name)] = s
	return s
}

func (c *cluster) secret(name string, data map[string][]byte) {
	c.secrets[named("default", name)] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "1"}, Data: data}
}

// ingress adds one: annotations as "name=value" lines, and paths as "host/path type service:port".
func (c *cluster) ingress(name, annotations string, paths ...string) *networkingv1.Ingress {
	ing := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, Annotations: map[string]string{}, CreationTimestamp: metav1.NewTime(now.Add(time.Duration(len(c.all)) * time.Second)),
	}}
	for line := range strings.Lines(annotations) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			ing.Annotations[references.Prefix+k] = v
		}
	}
	for _, p := range paths {
		f := strings.Fields(p)
		host, path, _ := strings.Cut(f[0], "/")
		service, port, _ := strings.Cut(f[2], ":")
		backend := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Name: port}}}
		if n := int32(0); port != "" && port[0] >= '0' && port[0] <= '9' {
			for _, d := range port {
				n = n*10 + int32(d-'0')
			}
			backend.Service.Port = networkingv1.ServiceBackendPort{Number: n}
		}
		ing.Spec.Rules = append(ing.Spec.Rules, networkingv1.IngressRule{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
			HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/" + path, PathType: new(networkingv1.PathType(f[1])), Backend: backend}}},
		}})
	}
	c.all = append(c.all, ing)
	return ing
}

func (c *cluster) compile() *Output { return Compile(c.input()) }

func (c *cluster) input() Input {
	return Input{
		Ingresses: c.all, Domain: "cluster.local", Default: c.standard, Parsed: NewParsed(), Now: now,
		Service:   func(n types.NamespacedName) *corev1.Service { return c.services[n] },
		Granted:   func(_ string, to types.NamespacedName) bool { return to.Namespace == "auth" },
		Secret:    func(n types.NamespacedName) *corev1.Secret { return c.secrets[n] },
		ConfigMap: func(n types.NamespacedName) *corev1.ConfigMap { return c.maps[n] },
	}
}

// faults are what events would say of an Ingress.
func (o *Output) faults(name string) string {
	var all []string
	for _, f := range o.Verdicts[named("default", name)].Faults {
		all = append(all, f.Text)
	}
	return strings.Join(all, "\n")
}
