package smoke

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"knarr/internal/need"
)

const soakManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: smoke}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: smoke}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}]
      containers:
      - {name: app, image: "knarr.test/app:1", command: ["/app"], args: ["-version=1"], ports: [{containerPort: 8080}], readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: smoke}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: smoke}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
`

// A soak is a cluster of two nodes that is asked without a pause.
type soak struct {
	t     *testing.T
	base  string
	nodes []string // their addresses
	roots *x509.CertPool

	asked, repeated, failed atomic.Int64
	mu                      sync.Mutex
	errs                    []string // the first ones
}

// TestGatewaySoak asks an Ingress as often as KNARR_SOAK says while what is behind it is
// replaced, a node drained, and the nodes' processes restarted and killed: no request
// fails. Clients send a request again once, as browsers do, of which they got no answer
// because its connection ended.
func TestGatewaySoak(t *testing.T) {
	total, _ := strconv.ParseInt(os.Getenv("KNARR_SOAK"), 10, 64)
	if total == 0 {
		t.Skip("it takes minutes: make gateway-soak")
	}
	need.Root(t)
	s := newSoak(t)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	began := time.Now()
	s.load(ctx, &group)
	defer group.Wait()
	defer cancel()
	for round := 0; s.asked.Load() < total; round++ {
		for _, under := range []struct {
			name   string
			change func()
		}{
			{"a rolling update", func() {
				s.kubectl("-n", "smoke", "patch", "deployment", "web", "--type=json", "-p", fmt.Sprintf(`[{"op":"replace","path":"/spec/template/spec/containers/0/args","value":["-version=%d"]}]`, round+2))
				s.kubectl("-n", "smoke", "rollout", "status", "deployment/web", "--timeout=120s")
			}},
			{"a drained node", func() {
				s.kubectl("drain", "soak-2", "--ignore-daemonsets", "--timeout=120s")
				s.kubectl("uncordon", "soak-2")
			}},
			{"the server replaced", func() { s.restart("soak-1", syscall.SIGHUP) }},
			{"the agent replaced", func() { s.restart("soak-2", syscall.SIGHUP) }},
			{"the server killed", func() { s.restart("soak-1", syscall.SIGKILL) }},
			{"the agent killed", func() { s.restart("soak-2", syscall.SIGKILL) }},
		} {
			asked, repeated, failed := s.asked.Load(), s.repeated.Load(), s.failed.Load()
			under.change()
			t.Logf("%s: %d asked, %d of them sent again, %d failed", under.name, s.asked.Load()-asked, s.repeated.Load()-repeated, s.failed.Load()-failed)
		}
	}
	cancel()
	group.Wait()
	took := time.Since(began)
	t.Logf("%d asked in %v (%.0f/s), %d of them sent again, %d failed", s.asked.Load(), took.Round(time.Second), float64(s.asked.Load())/took.Seconds(), s.repeated.Load(), s.failed.Load())
	if s.failed.Load() > 0 {
		t.Errorf("requests failed, the first of them:\n%s", strings.Join(s.errs, "\n"))
	}
}

func newSoak(t *testing.T) *soak {
	temp, err := os.MkdirTemp("", "knarr-soak-")
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{t: t, base: filepath.Join(temp, "clusters")}
	t.Cleanup(func() {
		if out, err := exec.Command(binary, "dev", "down", "--name", "soak", "--dir", s.base).CombinedOutput(); err != nil {
			t.Errorf("dev down: %v\n%s", err, out)
		}
		os.RemoveAll(temp)
	})
	archive := buildImage(t)
	s.up()
	t.Setenv("KUBECONFIG", filepath.Join(s.base, "soak", "kubeconfig"))
	s.knarr("images", "load", "--all-nodes", "--name", "soak", "--dir", s.base, archive)
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, client: kubernetes.NewForConfigOrDie(cfg)}
	s.apply(soakManifest)
	s.roots = c.ingressSecret(t)
	s.apply(ingressManifest)
	s.kubectl("-n", "smoke", "rollout", "status", "deployment/web", "--timeout=60s")
	c.wait("the Ingress' addresses", 30*time.Second, func(ctx context.Context) (bool, error) {
		ing, err := c.client.NetworkingV1().Ingresses("smoke").Get(ctx, "web", metav1.GetOptions{})
		if err != nil || len(ing.Status.LoadBalancer.Ingress) != 2 {
			return false, err
		}
		for _, in := range ing.Status.LoadBalancer.Ingress {
			s.nodes = append(s.nodes, in.IP)
		}
		return true, nil
	})
	for _, node := range s.nodes {
		for _, client := range s.clients(node) {
			c.wait("an answer of "+node, 30*time.Second, func(ctx context.Context) (bool, error) { err := client.ask(ctx); return err == nil, err })
			client.CloseIdleConnections()
		}
	}
	return s
}

func (s *soak) up() {
	s.t.Helper()
	s.knarr("dev", "up", "--name", "soak", "--dir", s.base, "--nodes", "2", "--timeout", "60s")
}

func (s *soak) knarr(args ...string) {
	s.t.Helper()
	if out, err := exec.Command(binary, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("knarr %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (s *soak) kubectl(args ...string) {
	s.t.Helper()
	s.knarr(append([]string{"kubectl"}, args...)...)
}

func (s *soak) apply(manifest string) {
	s.t.Helper()
	cmd := exec.Command(binary, "kubectl", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// restart ends a node's process and starts it again.
func (s *soak) restart(node string, by syscall.Signal) {
	s.t.Helper()
	var pid int
	lock, err := os.Open(filepath.Join(s.base, "soak", node, "lock"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer lock.Close()
	if _, err := fmt.Fscan(lock, &pid); err != nil {
		s.t.Fatal(err)
	}
	if err := syscall.Kill(pid, by); err != nil {
		s.t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH); err != nil { // until it has let go
		s.t.Fatal(err)
	}
	_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_UN)
	s.up()
	s.kubectl("-n", "smoke", "rollout", "status", "deployment/web", "--timeout=60s")
}

// A soakClient asks one node in one way.
type soakClient struct {
	*http.Client
	name, url string
}

// clients ask a node in every version of HTTP.
func (s *soak) clients(node string) []*soakClient {
	dial := func(ctx context.Context, network, to string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(to)
		return (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, net.JoinHostPort(node, port))
	}
	config := func() *tls.Config { return &tls.Config{RootCAs: s.roots} }
	with := func(name, scheme string, t http.RoundTripper) *soakClient {
		return &soakClient{&http.Client{Transport: t, Timeout: 60 * time.Second}, name + " of " + node, scheme + "://web.smoke.example/app/"}
	}
	return []*soakClient{
		with("HTTP/1.1", "http", &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 8}),
		with("HTTP/1.1 with TLS", "https", &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 8, TLSClientConfig: config()}),
		with("HTTP/2", "https", &http.Transport{DialContext: dial, TLSClientConfig: config(), ForceAttemptHTTP2: true}),
		with("HTTP/3", "https", &http3.Transport{TLSClientConfig: config(), Dial: func(ctx context.Context, _ string, c *tls.Config, q *quic.Config) (*quic.Conn, error) {
			return quic.DialAddrEarly(ctx, net.JoinHostPort(node, "443"), c, q)
		}}),
	}
}

// ask sends one request. Its error is errNoAnswer if no answer began.
func (c *soakClient) ask(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return err
	}
	answer, err := c.Do(request)
	if err != nil {
		return errors.Join(errNoAnswer, err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || !strings.Contains(string(body), "version=")) {
		err = fmt.Errorf("%s: %s", answer.Status, body)
	}
	return err
}

var errNoAnswer = errors.New("no answer")

// load asks with 40 requests at once until ctx ends.
func (s *soak) load(ctx context.Context, group *sync.WaitGroup) {
	for _, node := range s.nodes {
		for _, client := range s.clients(node) {
			for range 5 {
				group.Go(func() {
					for ctx.Err() == nil {
						err := client.ask(ctx)
						if errors.Is(err, errNoAnswer) && ctx.Err() == nil {
							s.note(client.name+", sent again", err)
							s.repeated.Add(1)
							err = client.ask(ctx)
						}
						if ctx.Err() != nil {
							return
						}
						s.asked.Add(1)
						if err != nil {
							s.failed.Add(1)
							s.note(client.name, err)
						}
					}
				})
			}
		}
	}
}

func (s *soak) note(client string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.errs) < 50 {
		s.errs = append(s.errs, time.Now().Format("15:04:05.000")+" "+client+": "+strings.ReplaceAll(err.Error(), "\n", ": "))
	}
}
