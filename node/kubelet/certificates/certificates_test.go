package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"knarr/internal/apitest"
)

// TestMain takes away what handles errors by waiting, by the clock outside the bubbles.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// life is how long the certificates of tests are valid.
const life = 24 * time.Hour

// A signer approves and signs what is asked for while it is open.
type signer struct {
	t      *testing.T
	client kubernetes.Interface
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	shut   bool
	signed int
}

func newSigner(t *testing.T, client kubernetes.Interface) *signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &signer{t: t, client: client, key: key, cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(1000 * life)}}
}

// any is the client for every kubeconfig: the library's that go by files of
// certificates leave goroutines to the collector.
func (s *signer) any(*rest.Config) (kubernetes.Interface, error) { return s.client, nil }

// look signs what waits now.
func (s *signer) look() {
	s.t.Helper()
	requests := s.client.CertificatesV1().CertificateSigningRequests()
	list, err := requests.List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range list.Items {
		r := &list.Items[i]
		if s.shut || len(r.Status.Certificate) > 0 {
			continue
		}
		block, _ := pem.Decode(r.Spec.Request)
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			s.t.Fatal(err)
		}
		now := time.Now()
		usage := map[string]x509.ExtKeyUsage{
			certificatesv1.KubeAPIServerClientKubeletSignerName: x509.ExtKeyUsageClientAuth,
			certificatesv1.KubeletServingSignerName:             x509.ExtKeyUsageServerAuth,
		}[r.Spec.SignerName]
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(int64(2 + s.signed)), Subject: request.Subject, DNSNames: request.DNSNames, IPAddresses: request.IPAddresses,
			NotBefore: now, NotAfter: now.Add(life), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		}, s.cert, request.PublicKey, s.key)
		if err != nil {
			s.t.Fatal(err)
		}
		r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
		if r, err = requests.UpdateApproval(s.t.Context(), r.Name, r, metav1.UpdateOptions{}); err != nil {
			s.t.Fatal(err)
		}
		r.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		if _, err := requests.UpdateStatus(s.t.Context(), r, metav1.UpdateOptions{}); err != nil {
			s.t.Fatal(err)
		}
		s.signed++
	}
}

// wait lets time pass and signs.
func (s *signer) wait(d time.Duration) {
	s.t.Helper()
	for ; d > 0; d -= time.Minute {
		time.Sleep(time.Minute)
		synctest.Wait()
		s.look()
	}
	time.Sleep(time.Second)
	synctest.Wait()
}

func inBubble(t *testing.T, f func(s *signer, ctx context.Context)) {
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); time.Sleep(2 * life) }() // the library's goroutines look at it when they have waited
		f(newSigner(t, api.Client(t)), ctx)
	})
}

// bootstrapFile is a kubeconfig with a token.
func bootstrapFile(t *testing.T, dir string) string {
	t.Helper()
	k := clientcmdapi.NewConfig()
	k.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://apiserver"}
	k.AuthInfos["u"] = &clientcmdapi.AuthInfo{}
	k.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	k.CurrentContext = "x"
	file := filepath.Join(dir, "bootstrap-kubelet.conf")
	if err := clientcmd.WriteToFile(*k, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// shown is the certificate that a configuration refers to.
func shown(t *testing.T, c *rest.Config) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// TestBootstrap: a node without a certificate gets one by its bootstrap kubeconfig,
// once somebody has approved it, and successors all the time; after a restart it needs
// no bootstrap kubeconfig, and after its certificate has ended it does.
func TestBootstrap(t *testing.T) {
	inBubble(t, func(s *signer, ctx context.Context) {
		dir := t.TempDir()
		c := Client{NodeName: "n", Kubeconfig: filepath.Join(dir, "kubelet.conf"), Bootstrap: bootstrapFile(t, dir), Dir: filepath.Join(dir, "pki"), Rotate: true, client: s.any}
		first, end := context.WithCancel(ctx)
		begin := func(ctx context.Context) chan *rest.Config {
			got := make(chan *rest.Config, 1)
			go func() {
				config, err := c.Config(ctx)
				if err != nil {
					t.Error(err)
				}
				got <- config
			}()
			return got
		}
		got := begin(first)
		s.shut = true
		s.wait(20 * time.Minute)
		if len(got) > 0 {
			t.Fatal("it goes on without a certificate")
		}
		s.shut = false
		s.wait(20 * time.Minute)
		config := <-got
		if cn := shown(t, config).Subject; cn.CommonName != "system:node:n" || !slices.Equal(cn.Organization, []string{"system:nodes"}) {
			t.Errorf("it is known as %v", cn)
		}
		if s.signed != 1 {
			t.Errorf("%d requests for the first certificate", s.signed)
		}
		for range 20 {
			s.wait(life / 4)
			if left := time.Until(shown(t, config).NotAfter); left < life/20 {
				t.Fatalf("its certificate ends in %v", left)
			}
		}
		end()
		s.wait(time.Hour)

		c.Bootstrap = filepath.Join(dir, "is not there any more")
		second, end := context.WithCancel(ctx)
		config = <-begin(second)
		s.wait(life)
		if left := time.Until(shown(t, config).NotAfter); left < life/20 {
			t.Errorf("after a restart its certificate ends in %v", left)
		}
		end()
		s.wait(2 * life)

		c.Bootstrap = bootstrapFile(t, dir)
		got = begin(ctx)
		s.wait(10 * time.Minute)
		if left := time.Until(shown(t, <-got).NotAfter); left < life/2 {
			t.Errorf("after it was away for long, its certificate ends in %v", left)
		}
	})
}

// TestEndedWhileRunning: a node that was cut off until its certificate had ended gets
// another by its bootstrap kubeconfig, without a restart. Where that is gone, it asks as
// it did.
func TestEndedWhileRunning(t *testing.T) {
	for _, removed := range []bool{false, true} {
		inBubble(t, func(s *signer, ctx context.Context) {
			dir := t.TempDir()
			var cut atomic.Bool
			var refused atomic.Int32
			c := Client{NodeName: "n", Kubeconfig: filepath.Join(dir, "kubelet.conf"), Bootstrap: bootstrapFile(t, dir), Dir: filepath.Join(dir, "pki"), Rotate: true}
			c.client = func(config *rest.Config) (kubernetes.Interface, error) {
				if cut.Load() {
					return nil, errors.New("no route to host")
				}
				if config.CertFile != "" && time.Now().After(shown(t, config).NotAfter) {
					refused.Add(1)
					return nil, errors.New("unauthorized")
				}
				return s.client, nil
			}
			got := make(chan *rest.Config, 1)
			go func() {
				config, err := c.Config(ctx)
				if err != nil {
					t.Error(err)
				}
				got <- config
			}()
			s.wait(10 * time.Minute)
			config := <-got
			cut.Store(true)
			s.wait(2 * life)
			if left := time.Until(shown(t, config).NotAfter); left > 0 {
				t.Fatalf("cut off, its certificate ends in %v", left)
			}
			if removed {
				if err := os.Remove(c.Bootstrap); err != nil {
					t.Fatal(err)
				}
			}
			cut.Store(false)
			s.wait(10 * time.Minute)
			if left := time.Until(shown(t, config).NotAfter); removed != (left <= 0) {
				t.Errorf("removed %v: its certificate ends in %v", removed, left)
			}
			if asked := refused.Load() > 0; asked != removed {
				t.Errorf("removed %v: it asked with an ended certificate: %v", removed, asked)
			}
			if removed {
				return
			}
			s.wait(life)
			if left := time.Until(shown(t, config).NotAfter); left < life/20 || refused.Load() > 0 {
				t.Errorf("after that its certificate ends in %v, and %d requests with one that had ended", left, refused.Load())
			}
		})
	}
}

// TestKubeconfigAsItIs: without a bootstrap kubeconfig, what the kubeconfig says counts,
// also where it has no certificate.
func TestKubeconfigAsItIs(t *testing.T) {
	inBubble(t, func(s *signer, ctx context.Context) {
		dir := t.TempDir()
		for _, rotate := range []bool{false, true} {
			c := Client{NodeName: "n", Kubeconfig: bootstrapFile(t, dir), Dir: filepath.Join(dir, "pki"), Rotate: rotate, client: s.any}
			config, err := c.Config(ctx)
			if err != nil || config.CertFile != "" || config.Host != "https://apiserver" {
				t.Errorf("%+v, %v", config, err)
			}
		}
		c := Client{NodeName: "n", Kubeconfig: filepath.Join(dir, "none"), Dir: dir}
		if _, err := c.Config(ctx); err == nil {
			t.Error("no kubeconfig, no error")
		}
	})
}

// TestServing: a certificate for all addresses, as soon as there is one and somebody
// approves it, and successors.
func TestServing(t *testing.T) {
	inBubble(t, func(s *signer, ctx context.Context) {
		var addresses atomic.Pointer[[]corev1.NodeAddress]
		has := func(ip string) {
			addresses.Store(&[]corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}, {Type: corev1.NodeHostName, Address: "n"}})
		}
		server := Server{NodeName: "n", Dir: t.TempDir(), Client: s.client, Addresses: func() []corev1.NodeAddress {
			if list := addresses.Load(); list != nil {
				return *list
			}
			return nil
		}}
		get, err := server.Run(ctx)
		if err != nil {
			t.Fatal(err)
		}
		s.wait(time.Hour)
		if _, err := get(nil); err == nil || s.signed > 0 {
			t.Errorf("%v, %d requests without an address", err, s.signed)
		}
		has("192.0.2.1")
		s.wait(time.Hour)
		for range 8 {
			cert, err := get(nil)
			if err != nil || cert.Leaf.VerifyHostname("n") != nil || cert.Leaf.VerifyHostname("192.0.2.1") != nil || time.Until(cert.Leaf.NotAfter) < life/20 {
				t.Fatalf("%v, %+v", err, cert)
			}
			s.wait(life / 4)
		}
		has("192.0.2.2")
		s.wait(time.Hour)
		if cert, err := get(nil); err != nil || cert.Leaf.VerifyHostname("192.0.2.2") != nil {
			t.Errorf("for another address: %v", err)
		}
	})
}

// filePair puts a certificate and its key in the place of those of two files.
func (s *signer) filePair(certFile, keyFile string, serial int64) {
	s.t.Helper()
	keyDER, err := x509.MarshalECPrivateKey(s.key)
	if err != nil {
		s.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}},
		DNSNames: []string{"n"}, IPAddresses: []net.IP{net.ParseIP("192.0.2.1")}, NotBefore: time.Now(), NotAfter: time.Now().Add(1000 * life),
	}, s.cert, s.key.Public(), s.key)
	if err != nil {
		s.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{keyFile: {Type: "EC PRIVATE KEY", Bytes: keyDER}, certFile: {Type: "CERTIFICATE", Bytes: der}} {
		if err := os.WriteFile(file+".new", pem.EncodeToMemory(block), 0o600); err != nil {
			s.t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestServingMeanwhile: where there is a pair of files, of all names that are wanted and
// for long, a certificate is asked for at once, and the pair is served as it is at each
// time until there is one.
func TestServingMeanwhile(t *testing.T) {
	inBubble(t, func(s *signer, ctx context.Context) {
		dir := t.TempDir()
		certFile, keyFile := filepath.Join(dir, "kubelet.crt"), filepath.Join(dir, "kubelet.key")
		s.filePair(certFile, keyFile, 1001)
		server := Server{NodeName: "n", Dir: filepath.Join(dir, "pki"), CertFile: certFile, KeyFile: keyFile, Client: s.client, Addresses: func() []corev1.NodeAddress {
			return []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeHostName, Address: "n"}}
		}}
		get, err := server.Run(ctx)
		if err != nil {
			t.Fatal(err)
		}
		serves := func(when string, serial int64) {
			t.Helper()
			if cert, err := get(nil); err != nil || cert.Leaf.SerialNumber.Int64() != serial {
				t.Errorf("%s: %v, %+v, want the certificate %d", when, err, cert, serial)
			}
		}
		s.shut = true
		s.wait(5 * time.Minute)
		list, err := s.client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Errorf("%v, %d requests at the start", err, len(list.Items))
		}
		serves("not approved", 1001)
		s.filePair(certFile, keyFile, 1002)
		serves("the files are renewed", 1002)
		s.shut = false
		s.wait(5 * time.Minute)
		serves("approved", 2)
		s.filePair(certFile, keyFile, 1003)
		serves("the files are renewed after that", 2)

		server.CertFile = filepath.Join(dir, "none")
		if _, err := server.Run(ctx); err != nil {
			t.Errorf("files that are not there: %v", err)
		}
		server.CertFile = keyFile
		if _, err := server.Run(ctx); err == nil {
			t.Error("files without a certificate, no error")
		}
	})
}

func TestServingRequest(t *testing.T) {
	for _, c := range []struct{ addresses, want string }{
		{"", ""}, {"Hostname n", ""}, {"InternalIP no address", ""},
		{"InternalIP 192.0.2.1", "[] [192.0.2.1]"},
		{"Hostname n, InternalIP 192.0.2.9, InternalIP 192.0.2.1, ExternalIP 192.0.2.9, InternalDNS n.a, ExternalDNS a.n, Hostname 192.0.2.3, InternalIP 2001:db8::1", "[a.n n n.a] [192.0.2.1 192.0.2.3 192.0.2.9 2001:db8::1]"},
	} {
		var list []corev1.NodeAddress
		for part := range strings.SplitSeq(c.addresses, ", ") {
			kind, address, _ := strings.Cut(part, " ")
			list = append(list, corev1.NodeAddress{Type: corev1.NodeAddressType(kind), Address: address})
		}
		got := ""
		if r := servingRequest("n", list); r != nil {
			got = fmt.Sprint(r.DNSNames, r.IPAddresses)
		}
		if got != c.want {
			t.Errorf("%q gives %q, want %q", c.addresses, got, c.want)
		}
	}
}
