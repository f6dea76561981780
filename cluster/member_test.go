package cluster

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/apitest"
	"knarr/internal/need"
	"knarr/internal/run"
	kubeletcertificates "knarr/node/kubelet/certificates"
)

// A joinProxy is a server that nodes join, over TLS on loopback.
type joinProxy struct {
	joins *joins
	*httptest.Server
}

func newJoinProxy(t *testing.T) *joinProxy {
	t.Helper()
	api, _ := apitest.New(t)
	l := layout{t.TempDir()}
	ca, err := openAuthority(l, "ca")
	if err != nil {
		t.Fatal(err)
	}
	serving, err := ca.issue(l, leaf{name: "apiserver", user: "kube-apiserver", hosts: []string{"127.0.0.1", "server.test"}})
	if err != nil {
		t.Fatal(err)
	}
	token, err := keepToken(l.tokenFile(), "", ca.pem, false)
	if err != nil {
		t.Fatal(err)
	}
	d := &joinProxy{joins: &joins{ca: ca, token: token, own: []string{"server.test"}, client: api.Client(t), slots: make(chan struct{}, maxJoins),
		facts: facts{ClusterCIDRs: ranges{netip.MustParsePrefix("10.42.0.0/16")}, ClusterDomain: "cluster.local", Network: 7}}}
	mux := http.NewServeMux()
	for path, h := range d.joins.paths() {
		mux.Handle(path, h)
	}
	d.Server = httptest.NewUnstartedServer(mux)
	d.TLS = &tls.Config{Certificates: []tls.Certificate{*serving}}
	d.Config.ErrorLog = log.New(nobody{}, "", 0)
	d.StartTLS()
	t.Cleanup(d.Close)
	return d
}

type nobody struct{}

func (nobody) Write(p []byte) (int, error) { return len(p), nil }

// agent is one that would join, with the flags changed.
func (d *joinProxy) agent(t *testing.T, change func(*AgentOptions)) *Agent {
	t.Helper()
	o := AgentOptions{Server: d.URL, token: d.joins.token}
	o.NodeName, o.DataDir, o.hostIPs = "n", t.TempDir(), addresses{netip.MustParseAddr("10.0.0.7")}
	if change != nil {
		change(&o)
	}
	return NewAgent(o)
}

func (a *Agent) askOnce(t *testing.T) (*membership, error) {
	t.Helper()
	key, err := nodeKey(a.layout)
	if err != nil {
		t.Fatal(err)
	}
	return a.ask(t.Context(), key)
}

func TestJoin(t *testing.T) {
	d := newJoinProxy(t)
	a := d.agent(t, nil)
	m, err := a.askOnce(t)
	if err != nil {
		t.Fatal(err)
	}
	if m.Facts.Network != 7 || !slices.Equal(m.Facts.ClusterCIDRs, d.joins.facts.ClusterCIDRs) {
		t.Errorf("facts %+v", m.Facts)
	}
	for name, want := range map[string]struct {
		user  string
		usage x509.ExtKeyUsage
	}{
		"kubelet-client": {"system:node:n", x509.ExtKeyUsageClientAuth},
		"kubelet":        {"system:node:n", x509.ExtKeyUsageServerAuth},
		"kube-proxy":     {"system:kube-proxy", x509.ExtKeyUsageClientAuth},
		"dns":            {"system:serviceaccount:kube-system:kube-dns", x509.ExtKeyUsageClientAuth},
	} {
		cert, err := x509.ParseCertificate(m.Certificates[name])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if cert.Subject.CommonName != want.user || len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != want.usage || cert.IsCA {
			t.Errorf("%s: %v %v", name, cert.Subject, cert.ExtKeyUsage)
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: m.pool, KeyUsages: cert.ExtKeyUsage}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	// Kept, it serves without the server, for this name, address and token.
	if err := a.layout.writeMember(m); err != nil {
		t.Fatal(err)
	}
	if got := a.remembered(); got == nil || got.Facts.Network != 7 || !a.serves(got, time.Now()) {
		t.Errorf("remembered %v", got)
	}
	if a.serves(m, time.Now().Add(2*leafLife)) {
		t.Error("certificates that have ended serve")
	}
	a.opts.hostIPs = addresses{netip.MustParseAddr("10.0.0.8")}
	if a.serves(a.remembered(), time.Now()) {
		t.Error("certificates of another address serve")
	}

	// The same key may come again, another may not.
	if _, err := a.askOnce(t); err != nil {
		t.Errorf("again: %v", err)
	}
	if _, err := d.agent(t, nil).askOnce(t); err == nil || !strings.Contains(err.Error(), "--node-name n is taken by a machine with another key") {
		t.Errorf("another key: %v", err)
	}
}

// TestJoinByKey: a node of the cluster renews its certificates by its key, whatever
// has become of the token, until its Node is deleted; nobody else gets in by one.
func TestJoinByKey(t *testing.T) {
	d := newJoinProxy(t)
	nodes := d.joins.client.CoreV1().Nodes()
	member := d.agent(t, nil)
	m, err := member.askOnce(t)
	if err != nil {
		t.Fatal(err)
	}
	if err := member.layout.writeMember(m); err != nil {
		t.Fatal(err)
	}
	d.joins.token.secret = "another by now"
	const other, none = "this server has another secret", "--token: must be given, for this machine's key is not that of node"
	fails := func(a *Agent, want string) {
		t.Helper()
		if _, err := a.askOnce(t); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	fails(member, other) // it has no Node yet
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{member.opts.token.secret, ""} {
		member.opts.token.secret = secret
		renewed, err := member.askOnce(t)
		if err != nil {
			t.Fatalf("with secret %q: %v", secret, err)
		}
		if err := member.take(m, renewed); err != nil {
			t.Fatal(err)
		}
	}
	for name := range m.Certificates {
		if _, err := tls.LoadX509KeyPair(member.layout.tls(name+".crt"), member.layout.tls(nodeKeyFile)); err != nil {
			t.Errorf("the certificate of %s: %v", name, err)
		}
	}
	fails(d.agent(t, func(o *AgentOptions) { o.token.secret = "wrong" }), other)
	fails(d.agent(t, func(o *AgentOptions) { o.token.secret = "" }), none)
	member.opts.NodeName = "m"
	fails(member, none)
	member.opts.NodeName = "n"
	if err := nodes.Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	fails(member, none)
	// Its kubelet makes the Node anew while its certificate is valid. That needs the token.
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	fails(member, none)
	for _, secret := range []string{d.joins.token.secret, ""} {
		member.opts.token.secret = secret
		if _, err := member.askOnce(t); err != nil {
			t.Errorf("with secret %q: %v", secret, err)
		}
	}
}

// TestRenew: a node asks for new certificates in time, and again after it failed.
func TestRenew(t *testing.T) {
	d := newJoinProxy(t)
	a := d.agent(t, nil)
	m, err := a.askOnce(t)
	if err != nil {
		t.Fatal(err)
	}
	if at := m.renewal(); at.Before(time.Now().Add(leafLife/4)) || at.After(time.Now().Add(leafLife/2)) {
		t.Errorf("to be renewed at %v", at)
	}
	// What cannot be kept is still to be renewed.
	before := m.Certificates
	renewed, err := a.askOnce(t)
	if err != nil {
		t.Fatal(err)
	}
	dir := a.layout.dir
	a.layout.dir = "/dev/null/no directory"
	if err := a.take(m, renewed); err == nil || !maps.EqualFunc(m.Certificates, before, bytes.Equal) {
		t.Errorf("%v, and other certificates than before", err)
	}
	a.layout.dir = dir
	// As they are near their end.
	old := map[string][]byte{}
	key, err := nodeKey(a.layout)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range nodeLeaves("n", a.opts.hostIPs) {
		old[l.name] = expiring(t, d.joins.ca, key.Public(), l)
	}
	m.Certificates = old
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// What fails is counted.
	failures := func() float64 {
		var m dto.Metric
		if err := kubeletcertificates.ServingFailures.Write(&m); err != nil {
			t.Fatal(err)
		}
		return m.Counter.GetValue()
	}
	was := failures()
	server := a.opts.Server
	a.opts.Server = "https://127.0.0.1:1"
	unable, stop := context.WithTimeout(ctx, 1500*time.Millisecond)
	defer stop()
	if err := a.renewCertificates(unable, m); err != nil || failures() != was+1 {
		t.Errorf("%v, %v failures", err, failures()-was)
	}
	a.opts.Server = server
	var group run.Group
	group.Go("renew", func() {
		if err := a.renewCertificates(ctx, m); err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; <-time.After(10 * time.Millisecond) {
		if cert, err := tls.LoadX509KeyPair(a.layout.tls("kubelet.crt"), a.layout.tls(nodeKeyFile)); err == nil && time.Until(cert.Leaf.NotAfter) > leafLife/2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("not renewed")
		}
	}
	cancel()
	group.Wait()
	if !a.serves(a.remembered(), time.Now().Add(leafLife/2)) {
		t.Error("what is kept does not serve for long")
	}
}

// expiring is a certificate in the last tenth of its life.
func expiring(t *testing.T, ca *authority, key crypto.PublicKey, l leaf) []byte {
	t.Helper()
	der, err := ca.sign(key, l)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	cert.NotBefore, cert.NotAfter = time.Now().Add(-leafLife*9/10), time.Now().Add(leafLife/10)
	if der, err = x509.CreateCertificate(rand.Reader, cert, ca.cert, key, ca.key); err != nil {
		t.Fatal(err)
	}
	return der
}

// TestJoinMistakes: each is one line that names the flag and the cure.
func TestJoinMistakes(t *testing.T) {
	d := newJoinProxy(t)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.NotFoundHandler(), ErrorLog: d.Config.ErrorLog}
	go func() { _ = srv.Serve(plain) }()
	t.Cleanup(func() { srv.Close() })
	other := httptest.NewTLSServer(http.NotFoundHandler())
	other.Config.ErrorLog = d.Config.ErrorLog
	t.Cleanup(other.Close)
	_, port, _ := net.SplitHostPort(d.Listener.Addr().String())
	for name, c := range map[string]struct {
		change func(*AgentOptions)
		want   string
		wait   bool // waiting may mend it
	}{
		"secret":      {func(o *AgentOptions) { o.token.secret = "guess" }, "--token: this server has another secret; copy node-token", false},
		"CA":          {func(o *AgentOptions) { o.token.caHash = strings.Repeat("00", 32) }, "--token is of another cluster than --server https://127.0.0.1", false},
		"name":        {func(o *AgentOptions) { o.NodeName = "server.test" }, "--node-name server.test is a name of the server itself", false},
		"no TLS":      {func(o *AgentOptions) { o.Server = "https://" + plain.Addr().String() }, "does not speak TLS; give the API server's port", false},
		"another":     {func(o *AgentOptions) { o.Server = other.URL }, "what answers there is no knarr server (404 Not Found)", false},
		"unreachable": {func(o *AgentOptions) { o.Server = "https://127.0.0.1:1" }, "--server https://127.0.0.1:1: not reached", true},
		"host":        {func(o *AgentOptions) { o.Server = "https://localhost:" + port }, "its certificate has no such name; start the server with it as --tls-san", false},
	} {
		_, err := d.agent(t, c.change).askOnce(t)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		if errors.Is(err, errUnreachable) != c.wait {
			t.Errorf("%s: waits: %v", name, !c.wait)
		}
		if err != nil && strings.Contains(err.Error(), d.joins.token.secret) {
			t.Errorf("%s: the secret is in %v", name, err)
		}
	}
}

// Strangers who ask and do not finish take no more than their places, and a node
// that finds none is told to come again.
func TestJoinBounded(t *testing.T) {
	d := newJoinProxy(t)
	for range maxJoins {
		d.joins.slots <- struct{}{}
	}
	_, err := d.agent(t, nil).askOnce(t)
	if !errors.Is(err, errUnreachable) || !strings.Contains(err.Error(), "too many nodes join at once") {
		t.Errorf("%v", err)
	}
	<-d.joins.slots
	if _, err := d.agent(t, nil).askOnce(t); err != nil {
		t.Error(err)
	}
	if len(d.joins.slots) != maxJoins-1 {
		t.Errorf("%d places are taken", len(d.joins.slots))
	}
}

// An agent that was there before the server joins once there is one.
func TestJoinWaits(t *testing.T) {
	d := newJoinProxy(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := d.agent(t, func(o *AgentOptions) { o.Server = "https://" + l.Addr().String() })
	l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	joined := make(chan error, 1)
	go func() {
		m, err := a.join(ctx)
		if m == nil && err == nil {
			err = ctx.Err()
		}
		joined <- err
	}()
	if l, err = net.Listen("tcp", l.Addr().String()); err != nil {
		need.Skip(t, "somebody took the port meanwhile: run it again: ", err)
	}
	srv := &http.Server{Handler: d.Config.Handler, TLSConfig: d.TLS, ErrorLog: d.Config.ErrorLog}
	go func() { _ = srv.ServeTLS(l, "", "") }()
	defer srv.Close()
	if err := <-joined; err != nil {
		t.Error(err)
	}
}

func TestSkewed(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		server time.Duration
		want   string
	}{{0, ""}, {20 * time.Minute, ""}, {-20 * time.Minute, ""},
		{40 * time.Minute, "this machine's clock says 2026-01-02T03:04:05Z, the server's 2026-01-02T03:44:05Z; set the wrong one right"}, {-time.Hour, "the server's 2026-01-02T02:04:05Z"}} {
		err := skewed(now, now.Add(c.server).Format(http.TimeFormat))
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.server, err)
		}
	}
	if err := skewed(now, ""); err != nil {
		t.Error(err)
	}
}

func TestServerURL(t *testing.T) {
	for in, want := range map[string]string{
		"https://host": "https://host:6443", "https://host:7443": "https://host:7443", "https://10.0.0.1/": "https://10.0.0.1:6443",
		"https://[fd00::1]": "https://[fd00::1]:6443",
		"":                  "", "host:6443": "", "http://host:6443": "", "https://": "", "https://u:p@host": "", "https://host/path": "",
	} {
		got, err := serverURL(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
}
