package cluster

import (
	"context"
	"crypto/tls"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/etcd"
	"knarr/internal/apitest"
	"knarr/internal/need"
)

// A first is a server that others join: its door and its etcd are real.
type first struct {
	*Server
	url string
	api *apitest.Server
}

func newFirst(t *testing.T, ctx context.Context) *first {
	t.Helper()
	api, _ := apitest.New(t)
	s := NewServer(*serverOptions(t, "--node-name", "one", "--node-ip", "127.0.0.1", "--etcd-peer-port", freePort(t), "--cluster-domain", "a.test"))
	var err error
	for _, step := range []func() error{
		func() error { s.ca, err = openAuthority(s.layout, "ca"); return err },
		func() error { s.frontProxy, err = openAuthority(s.layout, "front-proxy-ca"); return err },
		func() error { _, err = openKey(s.layout.tls("service-account.key")); return err },
		func() error { s.member, err = s.openStore(ctx); return err },
		func() error { s.joins, err = s.newJoins(s.member); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(s.member.Close)
	s.joins.client, s.joins.servers.client = api.Client(t), api.Client(t)
	s.joins.servers.own = []string{"one"}
	serving, err := s.ca.issue(s.layout, leaf{name: "apiserver", user: "kube-apiserver", hosts: []string{"127.0.0.1", serverName}})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for path, h := range s.joins.paths() {
		mux.Handle(path, h)
	}
	srv := httptest.NewUnstartedServer(mux)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{*serving}}
	srv.Config.ErrorLog = log.New(nobody{}, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return &first{s, srv.URL, api}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// reachable is an address of this host that others could reach; traffic to it
// stays here.
func reachable(t *testing.T) string {
	t.Helper()
	a := defaultAddresses()[0]
	if a.IsLoopback() {
		need.Skip(t, "needs an address that is not loopback: ip address add 192.0.2.1/24 dev lo")
	}
	return a.String()
}

// second is a server that would join, with the token and flags given.
func (f *first) second(t *testing.T, token string, args ...string) *Server {
	t.Helper()
	return NewServer(*serverOptions(t, append([]string{"--node-name", "two", "--node-ip", reachable(t), "--etcd-peer-port", freePort(t), "--server", f.url, "--token", token}, args...)...))
}

// A second server gets the cluster's keys, and a vote in its etcd; it comes back
// by itself, leaves, and is let in again.
func TestServerJoin(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	f := newFirst(t, ctx)
	if _, err := f.member.Client().Put(ctx, "/a", "1"); err != nil {
		t.Fatal(err)
	}
	s := f.second(t, f.joins.servers.token.String())
	join := func(s *Server) *etcd.Member {
		t.Helper()
		w, err := s.joinServers(ctx)
		if err == nil {
			err = s.adopt(w)
		}
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.openStore(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := join(s)
	for _, name := range sharedFiles {
		mine, _ := os.ReadFile(s.layout.tls(name))
		theirs, err := os.ReadFile(f.layout.tls(name))
		st, _ := os.Stat(s.layout.tls(name))
		if err != nil || string(mine) != string(theirs) || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	if nodes, servers, err := s.layout.tokens(&s.opts, f.ca.pem); err != nil || nodes != f.joins.token || servers != f.joins.servers.token {
		t.Errorf("tokens %v", err)
	}
	if s.opts.ClusterDomain != "a.test" {
		t.Errorf("domain %s", s.opts.ClusterDomain)
	}
	if resp, err := m.Client().Get(ctx, "/a"); err != nil || len(resp.Kvs) != 1 {
		t.Errorf("%v, %v", resp, err)
	}
	// While it is one, nobody else has its name.
	if _, err := f.joins.servers.admit(ctx, &serverRequest{NodeName: "two", NodeIP: netip.MustParseAddr("192.0.2.9"), PeerURL: "https://192.0.2.9:1"}); err == nil || !strings.Contains(err.Error(), "is that of a server that is a member") {
		t.Errorf("a taken name: %v", err)
	}
	m.Close()
	again := NewServer(*serverOptions(t, "--data-dir", s.opts.DataDir, "--node-name", "two", "--node-ip", reachable(t), "--etcd-peer-port", strconv.Itoa(s.opts.EtcdPeerPort)))
	m = join(again) // without --server
	if again.opts.ClusterDomain != "a.test" {
		t.Errorf("after a restart: domain %s", again.opts.ClusterDomain)
	}
	if all, err := m.Peers(ctx); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
	if err := again.remember(func(p *peerState) { p.Servers = []string{f.url} }); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	if err := again.layout.askToLeave(ctx, again.peerState); err != nil {
		t.Fatal(err)
	}
	if err := again.whyRemoved(<-ended); err == nil || !strings.Contains(err.Error(), "this server was removed from its cluster") {
		t.Errorf("%v", err)
	}
	if err := os.RemoveAll(again.opts.DataDir); err != nil {
		t.Fatal(err)
	}
	m = join(f.second(t, f.joins.servers.token.String()))
	defer m.Close()
	if all, err := m.Peers(ctx); err != nil || len(all) != 2 {
		t.Errorf("after its return: %v, %v", all, err)
	}
}

// TestServerJoinMistakes: each is one line with the cure, and leaves nothing behind.
func TestServerJoinMistakes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	f := newFirst(t, ctx)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "taken"}}
	if _, err := f.api.Client(t).CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	right := f.joins.servers.token
	wrong := right
	wrong.secret = "guess"
	other := right
	other.caHash = strings.Repeat("00", 32)
	posing := f.joins.token // the nodes' secret in the form of the servers'
	posing.server = true
	for name, c := range map[string]struct {
		token, want string
		args        []string
	}{
		"nodes' token":  {f.joins.token.String(), "--token is that of nodes, which may not have the cluster's keys", nil},
		"nodes' secret": {posing.String(), "--token is that of nodes, which may not have the cluster's keys", nil},
		"guess":         {wrong.String(), "--token: this server has another secret; copy server-token", nil},
		"other cluster": {other.String(), "--token is of another cluster than --server", nil},
		"name":          {right.String(), "--node-name taken is taken by a node", []string{"--node-name", "taken"}},
		"contradiction": {right.String(), "--cluster-domain: b.test: the cluster has a.test", []string{"--cluster-domain", "b.test"}},
	} {
		s := f.second(t, c.token, c.args...)
		w, err := s.joinServers(ctx)
		if err == nil || !strings.Contains(err.Error(), c.want) || w != nil && c.args == nil {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), right.secret) {
			t.Errorf("%s: the secret is in %v", name, err)
		}
		if left, _ := filepath.Glob(filepath.Join(s.opts.DataDir, "*")); len(left) > 0 {
			t.Errorf("%s leaves %v", name, left)
		}
	}
	// Who goes on guessing is told to wait, whatever comes then.
	for range maxFailedAttempts {
		_, _ = f.second(t, wrong.String()).requestJoin(ctx)
	}
	if _, err := f.second(t, right.String()).requestJoin(ctx); err == nil || !strings.Contains(err.Error(), "too many wrong tokens from this address") {
		t.Errorf("after %d guesses: %v", maxFailedAttempts, err)
	}
}
