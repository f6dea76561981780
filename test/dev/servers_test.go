package dev

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const everywhere = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: app, image: "knarr.test/hello:1"}
`

// TestServers runs a cluster of three servers and an agent, loses the leader of
// its store under a writer, and shrinks it to one.
func TestServers(t *testing.T) {
	temp, archive := prepare(t)
	w := newWorld(t, temp, "e2e-1", "e2e-2", "e2e-3", "e2e-4")
	began := time.Now()
	w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--nodes", "4", "--servers", "3", "--timeout", "60s")
	t.Logf("three servers and an agent Ready with DNS answering after %v", time.Since(began).Round(time.Millisecond))
	t.Setenv("KUBECONFIG", filepath.Join(w.base, "e2e", "kubeconfig"))
	w.client = w.through("")
	w.steps([]step{
		{"roles", roles}, {"images", func(w *world) { w.knarr("images", "load", "--all-nodes", "--name", "e2e", "--dir", w.base, archive) }},
		{"every server", everyServer}, {"untrusted", checkUntrusted}, {"leader lost", leaderLost}, {"leader back", leaderBack}, {"shrink", shrink},
	}...)
	w.nodes = []string{"e2e-1", "e2e-4"} // the others have ended
	w.noTraces()
}

// through is a client of one server, or of the cluster's kubeconfig.
func (w *world) through(server string) *kubernetes.Clientset {
	w.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		w.t.Fatal(err)
	}
	if server != "" {
		cfg.Host = "https://" + server + ":6443"
	}
	cfg.QPS, cfg.Timeout = -1, 2*time.Second
	return kubernetes.NewForConfigOrDie(cfg)
}

// addresses of the servers, by their nodes' names.
func (w *world) addresses() map[string]string {
	w.t.Helper()
	nodes, err := w.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/control-plane"})
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[string]string{}
	for _, n := range nodes.Items {
		all[n.Name] = n.Status.Addresses[0].Address
	}
	return all
}

func roles(w *world) {
	out := w.knarr("dev", "ls", "--dir", w.base)
	if f := strings.Fields(strings.Split(out, "\n")[1]); f[1] != "4" || f[2] != "4" || f[3] != "e2e-1,e2e-2,e2e-3" {
		w.t.Errorf("dev ls:\n%s", out)
	}
	w.until("the Service kubernetes leads to three servers", func() bool {
		s, err := w.client.DiscoveryV1().EndpointSlices("default").Get(context.Background(), "kubernetes", metav1.GetOptions{})
		return err == nil && len(s.Endpoints) == 3
	})
	if got := w.addresses(); len(got) != 3 {
		w.t.Errorf("servers %v", got)
	}
}

// everyServer takes writes, and shows at once what the others took.
func everyServer(w *world) {
	w.apply(everywhere)
	w.knarr("kubectl", "rollout", "status", "daemonset/web", "--timeout=30s")
	at := w.addresses()
	for name, address := range at {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "by-" + name}}
		if _, err := w.through(address).CoreV1().ConfigMaps("default").Create(context.Background(), m, metav1.CreateOptions{}); err != nil {
			w.t.Fatal(err)
		}
		for other, a := range at {
			if _, err := w.through(a).CoreV1().ConfigMaps("default").Get(context.Background(), m.Name, metav1.GetOptions{}); err != nil {
				w.t.Errorf("%s does not show what %s took: %v", other, name, err)
			}
		}
	}
	// Node ports are one pool, whoever gives them out.
	var group sync.WaitGroup
	for _, address := range at {
		client := w.through(address)
		for i := range 8 {
			group.Go(func() {
				s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "port-"}, Spec: corev1.ServiceSpec{
					Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: 31000 + int32(i)}},
				}}
				_, _ = client.CoreV1().Services("default").Create(context.Background(), s, metav1.CreateOptions{})
			})
		}
	}
	group.Wait()
	all, err := w.client.CoreV1().Services("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	ports := map[int32]string{}
	for _, s := range all.Items {
		if p := s.Spec.Ports[0].NodePort; p != 0 {
			if other := ports[p]; other != "" {
				w.t.Errorf("%s and %s both have port %d", s.Name, other, p)
			}
			ports[p] = s.Name
		}
	}
	if len(ports) != 8 {
		w.t.Errorf("ports given out: %v", ports)
	}
}

// checkUntrusted do not become servers: with the nodes' token they are refused.
func checkUntrusted(w *world) {
	out, err := w.try("server", "--data-dir", filepath.Join(w.base, "thief"), "--config", "/dev/null", "--disable-agent", "--https-listen-port", "19443",
		"--server", "https://"+w.addresses()["e2e-1"]+":6443", "--token-file", filepath.Join(w.dir(), "e2e-1", "node-token"))
	if err == nil || !strings.Contains(out, "--token is that of nodes, which may not have the cluster's keys; copy server-token") {
		w.t.Errorf("%v: %s", err, out)
	}
	if st, err := os.Stat(filepath.Join(w.dir(), "e2e-2", "tls", "ca.key")); err != nil || st.Mode().Perm() != 0o600 {
		w.t.Errorf("the CA's key: %v, %v", st, err)
	}
}

// leader is the server whose member of etcd leads.
func (w *world) leader() string {
	for _, n := range w.nodes[:3] {
		b, _ := os.ReadFile(filepath.Join(w.dir(), n+".log"))
		ours, others := strings.LastIndex(string(b), "this server leads etcd"), strings.LastIndex(string(b), "another server leads etcd")
		if ours > others {
			return n
		}
	}
	w.t.Fatal("nobody says that it leads etcd")
	return ""
}

// killNode ends everything of a node but its containers.
func (w *world) killNode(name string) {
	w.t.Helper()
	space := filepath.Join(w.spaces(), name+".net")
	var want syscall.Stat_t
	if err := syscall.Stat(space, &want); err != nil {
		w.t.Fatal(err)
	}
	files, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, f := range files {
		var pid int
		var have syscall.Stat_t
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(f)), "cmdline"))
		if _, err := fmt.Sscanf(f, "/proc/%d/", &pid); err == nil && syscall.Stat(f, &have) == nil && have.Ino == want.Ino && !strings.Contains(string(line), "containerd-shim") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// leaderLost kills the node of the store's leader while somebody writes.
func leaderLost(w *world) {
	lost := w.leader()
	pods, err := w.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil || len(pods.Items) != 4 {
		w.t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	var mu sync.Mutex
	var acknowledged []string
	var last time.Time
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(acknowledged) }
	ctx, stop := context.WithCancel(context.Background())
	var writer sync.WaitGroup
	client, gap := w.client, time.Duration(0)
	for n := range 3 { // what was under way with the leader may have to be given up
		writer.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("acknowledged-%d-%d", n, i)}}
				_, err := client.CoreV1().ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{})
				if err == nil {
					mu.Lock()
					acknowledged = append(acknowledged, m.Name)
					if !last.IsZero() {
						gap = max(gap, time.Since(last))
					}
					last = time.Now()
					mu.Unlock()
				}
			}
		})
	}
	defer func() { stop(); writer.Wait() }()
	w.until("the writer writes", func() bool { return count() > 20 })
	w.killNode(lost)
	killed, before := time.Now(), count()
	w.until("writes go on", func() bool { return count() > before+20 })
	w.t.Logf("%s lost; 20 more writes after %v, the longest time without one %v, %d writes before", lost, time.Since(killed).Round(time.Millisecond), gap.Round(time.Millisecond), before)
	if out := w.knarr("kubectl", "get", "nodes"); !strings.Contains(out, lost) {
		w.t.Errorf("kubectl: %s", out)
	}
	// The lost node is called Ready for some time yet, and would get pods.
	w.knarr("kubectl", "cordon", lost)
	w.knarr("kubectl", "create", "deployment", "after", "--image=knarr.test/hello:1", "--replicas=2")
	// The agent, whose join URL is dead should that be the first, takes pods.
	w.knarr("kubectl", "run", "late", "--image=knarr.test/hello:1", `--overrides={"spec":{"nodeName":"e2e-4","terminationGracePeriodSeconds":0}}`)
	w.knarr("kubectl", "wait", "--for=condition=Ready", "pod/late", "--timeout=20s")
	stop()
	writer.Wait()
	for name, address := range w.addresses() {
		if name != lost {
			w.kept(name, address, acknowledged)
		}
	}
	for _, p := range pods.Items { // all of them: containers outlive their node's knarr
		if p.Spec.NodeName != lost {
			w.wget(p, "http://127.0.0.1:8080")
		}
	}
	w.until("the Service kubernetes leads to two servers", func() bool {
		s, err := w.client.DiscoveryV1().EndpointSlices("default").Get(context.Background(), "kubernetes", metav1.GetOptions{})
		return err == nil && len(s.Endpoints) == 2
	})
	w.acknowledged = acknowledged
	// Scheduler and controllers of another server have taken over.
	w.knarr("kubectl", "rollout", "status", "deployment/after", "--timeout=20s")
	w.t.Logf("a deployment made after the loss has its pods %v after it", time.Since(killed).Round(time.Millisecond))
}

// kept wants a server to show everything that was acknowledged.
func (w *world) kept(name, address string, acknowledged []string) {
	w.t.Helper()
	list, err := w.through(address).CoreV1().ConfigMaps("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	there := map[string]bool{}
	for _, m := range list.Items {
		there[m.Name] = true
	}
	for _, m := range acknowledged {
		if !there[m] {
			w.t.Errorf("%s lacks %s, which was acknowledged", name, m)
		}
	}
}

// leaderBack starts the node again, which catches up.
func leaderBack(w *world) {
	w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--timeout", "40s")
	for name, address := range w.addresses() {
		w.kept(name, address, w.acknowledged)
	}
	leases, err := w.client.CoordinationV1().Leases("kube-system").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var held []string
	for _, l := range leases.Items {
		held = append(held, l.Name)
	}
	if want := []string{"gateway", "kube-controller-manager", "kube-scheduler", "local-path", "service-lb"}; !slices.Equal(held, want) {
		w.t.Errorf("leases %v, want %v", held, want)
	}
}

// shrink deletes two servers' nodes, one after the other.
func shrink(w *world) {
	for i, gone := range []string{"e2e-3", "e2e-2"} {
		w.knarr("kubectl", "delete", "node", gone, "--timeout=20s")
		w.until(gone+" ends", func() bool {
			b, _ := os.ReadFile(filepath.Join(w.dir(), gone+".log"))
			return strings.Contains(string(b), "this server was removed from its cluster, as its Node was deleted")
		})
		w.until("the first server counts fewer", func() bool {
			b, _ := os.ReadFile(filepath.Join(w.dir(), "e2e-1.log"))
			at := strings.LastIndex(string(b), "msg=servers count=")
			return at >= 0 && strings.HasPrefix(string(b)[at:], fmt.Sprintf("msg=servers count=%d", 2-i))
		})
	}
	w.until("the one that is left takes writes", func() bool {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "alone"}}
		_, err := w.client.CoreV1().ConfigMaps("default").Create(context.Background(), m, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err)
	})
}
