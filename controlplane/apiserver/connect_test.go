package apiserver_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver"
	"knarr/internal/apitest"
)

// nodeCA signs the certificates of kubelets.
type nodeCA struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newNodeCA(t testing.TB) *nodeCA {
	t.Helper()
	pair, pem := serving(t, "ca")
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &nodeCA{t, cert, pair.PrivateKey.(*ecdsa.PrivateKey), pool}
}

// issue makes the certificate of a server on loopback.
func (ca *nodeCA) issue(subject pkix.Name) tls.Certificate {
	ca.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: subject, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(1, 0, 0), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// kubelet serves as a kubelet with that certificate, agrees to every upgrade,
// and returns its port.
func (ca *nodeCA) kubelet(subject pkix.Name) int32 {
	ca.t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			fmt.Fprint(w, "kubelet ", r.URL.Path)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			ca.t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\nhello\n", r.Header.Get("Upgrade"))
	}))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{ca.issue(subject)}}
	srv.Config.ErrorLog = quietLog
	srv.StartTLS()
	ca.t.Cleanup(srv.Close)
	return int32(srv.Listener.Addr().(*net.TCPAddr).Port)
}

func ofNode(name string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
}

// at makes a Node whose kubelet is said to be at an address and a port.
func (w *world) at(name string, kind corev1.NodeAddressType, address string, port int32) {
	w.t.Helper()
	n, err := w.admin.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	w.must(err)
	n.Status.Addresses = []corev1.NodeAddress{{Type: kind, Address: address}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	_, err = w.admin.CoreV1().Nodes().UpdateStatus(w.ctx, n, metav1.UpdateOptions{})
	w.must(err)
	w.must(w.Cache().Sync(w.ctx))
}

// withKubelets is a world whose kubelets the CA vouches for.
func withKubelets(t testing.TB, change ...func(*apiserver.Config)) (*world, *nodeCA) {
	t.Helper()
	ca := newNodeCA(t)
	s, _ := apitest.New(t, append([]func(*apiserver.Config){func(c *apiserver.Config) { c.KubeletCA = ca.pool }}, change...)...)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	w := &world{Server: s, t: t, ctx: ctx, admin: s.Client(t)}
	w.account("default", "default")
	return w, ca
}

// upgrade asks for a connection as a user, and returns the answer's code and
// what follows.
func (w *world) upgrade(who, method, path, protocol string) (int, string) {
	w.t.Helper()
	conn, err := w.Config(&user.DefaultInfo{Name: who}).Dial(w.ctx, "", "")
	w.must(err)
	defer conn.Close()
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n", method, path, protocol)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	w.must(err)
	if resp.StatusCode == http.StatusSwitchingProtocols {
		line, err := r.ReadString('\n')
		w.must(err)
		return resp.StatusCode, line
	}
	b, err := io.ReadAll(resp.Body)
	w.must(err)
	return resp.StatusCode, string(b)
}

// TestUpgradeNeedsCreate: a WebSocket begins with a GET, yet what is done over it
// is as much as a POST can do.
func TestUpgradeNeedsCreate(t *testing.T) {
	w, ca := withKubelets(t)
	w.at("n", corev1.NodeInternalIP, "127.0.0.1", ca.kubelet(ofNode("n")))
	w.pod("p", "n")
	subject := func(name string) rbacv1.Subject { return rbacv1.Subject{Kind: rbacv1.UserKind, Name: name} }
	const resources = "pods,pods/exec,pods/attach,pods/portforward,pods/log"
	w.allow("reads", "default", subject("reader"), rule("get", "", resources))
	w.allow("writes", "default", subject("writer"), rule("get,create", "", resources))
	w.allow("creates", "default", subject("creator"), rule("create", "", resources))
	for _, sub := range []string{"exec?command=sh&stdout=1", "attach?stdout=1", "portforward?ports=80"} {
		path := "/api/v1/namespaces/default/pods/p/" + sub
		for _, c := range []struct {
			who, method, protocol string
			code                  int
			says                  string
		}{
			{"reader", "GET", "websocket", 403, `"message":"pods \"p\" is forbidden: ","reason":"Forbidden","details":{"name":"p","kind":"pods"},"code":403`},
			{"reader", "GET", "SPDY/3.1", 403, `pods \"p\" is forbidden: `},
			{"reader", "POST", "SPDY/3.1", 403, "cannot create resource"},
			{"writer", "GET", "websocket", 101, "hello"},
			{"creator", "POST", "SPDY/3.1", 101, "hello"},
			{"creator", "GET", "websocket", 403, "cannot get resource"},
		} {
			if code, body := w.upgrade(c.who, c.method, path, c.protocol); code != c.code || !strings.Contains(body, c.says) {
				t.Errorf("%s by %s: %s %s: %d %s; want %d %s", c.who, c.protocol, c.method, sub, code, body, c.code, c.says)
			}
		}
	}
	// A log is read, whatever carries it.
	_, err := w.as("reader").CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{}).DoRaw(w.ctx)
	w.must(err)
}

// quietLog is for servers whose refused clients are meant.
var quietLog = log.New(io.Discard, "", 0)
