package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"knarr/addons/metrics"
	"knarr/cluster"
	"knarr/controlplane/apiserver"
	"knarr/internal/apitest"
	"knarr/internal/need"
)

// figures are what the made-up kubelets tell: metric, millicores or bytes. A pod
// named other is of another node than the one that tells of it.
var figures = map[string]string{
	"top-a": "node cpu 250\nnode memory 536870912\ntop web web cpu 15\ntop web web memory 20971520\ntop web side cpu 5\ntop web side memory 7340032\n",
	"top-b": "node cpu 3000\nnode memory 1073741824\ntop db db cpu 1200\ntop db db memory 3221225472\ntop other c cpu 7\ntop other c memory 1024\n",
}

// booted is when the made-up nodes started, in Unix milliseconds: so short ago that a
// float64 holds the seconds of processors used since to the nanosecond.
var booted = time.Now().Add(-time.Hour).UnixMilli()

// A madeUp kubelet answers with the figures of the node that is asked.
type madeUp struct{}

func (madeUp) RoundTrip(r *http.Request) (*http.Response, error) {
	now := time.Now().UnixMilli()
	var b strings.Builder
	for line := range strings.Lines(figures[r.URL.Host]) {
		f := strings.Fields(line)
		name, labels := "node", ""
		if len(f) == 5 {
			name, labels = "container", fmt.Sprintf("{container=%q,namespace=%q,pod=%q}", f[2], f[0], f[1])
		}
		var value int64
		if _, err := fmt.Sscan(f[len(f)-1], &value); err != nil {
			return nil, err
		}
		if f[len(f)-2] == "cpu" {
			fmt.Fprintf(&b, "%s_cpu_usage_seconds_total%s %.6f %d\n", name, labels, float64(value*(now-booted))/1e6, now)
		} else {
			fmt.Fprintf(&b, "%s_memory_working_set_bytes%s %d %d\n", name, labels, value, now)
		}
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(b.String()))}, nil
}

// TestTop types kubectl top at an API server with the metrics server, in this
// process, whose kubelets are made up.
func TestTop(t *testing.T) {
	if *update {
		t.Skip("upstream's programs have no metrics server")
	}
	if _, err := os.Stat("../../internal/programs/bin/kubectl.zst"); err != nil {
		need.Skip(t, "needs the embedded kubectl: make build")
	}
	var measure *metrics.Server
	api, _ := apitest.New(t, func(c *apiserver.Config) {
		c.Aggregated = map[string]func(context.Context, string, string) (net.Conn, error){
			metrics.Service: func(ctx context.Context, network, address string) (net.Conn, error) {
				return measure.Dial(ctx, network, address)
			},
		}
	})
	account := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:metrics-server", Groups: []string{user.AllAuthenticated}}
	measure, err := metrics.New(metrics.Config{
		Kube: api.Config(account), Registrar: api.Config(),
		Kubelet: func(_ context.Context, node string) (*url.URL, http.RoundTripper, error) {
			return &url.URL{Scheme: "https", Host: node}, madeUp{}, nil
		},
	})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- measure.Run(ctx) }()
	defer func() { cancel(); must(t, <-ended) }()
	client := api.Client(t)
	_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "top"}}, metav1.CreateOptions{})
	must(t, err)
	_, err = client.CoreV1().ServiceAccounts("top").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	must(t, err)
	w := &world{dir: t.TempDir()}
	must(t, os.Mkdir(filepath.Join(w.dir, "bin"), 0o755))
	kubectl, _, err := cluster.Kubectl()
	must(t, err)
	must(t, os.Symlink(kubectl, filepath.Join(w.dir, "bin", "kubectl")))
	w.kubeconfig = strings.Replace(fmt.Sprintf(kubeconfig, 0, ""), `"https://127.0.0.1:0", certificate-authority: ""`, fmt.Sprintf("%q, insecure-skip-tls-verify: true", serveTLS(t, api)), 1)
	replay(t, w, "../../test/kubectl/metrics/top.txt")
}

// serveTLS gives the address at which an API server in memory is reached by programs, as
// the users of the kubeconfig.
func serveTLS(t *testing.T, api *apitest.Server) string {
	users := map[string]http.RoundTripper{}
	for token, who := range map[string]user.Info{
		"Bearer admin-token": &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}},
		"Bearer jane-token":  &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}},
	} {
		transport, err := rest.TransportFor(api.Config(who))
		must(t, err)
		users[token] = transport
	}
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxy := httputil.ReverseProxy{Transport: users[r.Header.Get("Authorization")], FlushInterval: -1, Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: "apiserver"})
			p.Out.Header.Del("Authorization")
		}}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}
