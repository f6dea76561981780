// Package dev runs a cluster of two nodes on this machine, as people do with
// knarr dev. It reads the built knarr, and removes everything again.
package dev

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"knarr/internal/need"
)

// binary is the knarr under test.
const binary = "../../bin/knarr"

const manifest = `
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
      - {name: app, image: "knarr.test/hello:1", ports: [{containerPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: v1
kind: Service
metadata: {name: first}
spec:
  selector: {node: first}
  ports: [{port: 80, targetPort: 8080}]
`

// A world is the cluster under test.
type world struct {
	t            *testing.T
	base         string
	client       *kubernetes.Clientset
	one, two     corev1.Pod // of web, on each node
	nodes        []string   // their names
	nodeAgent    string     // data directory of the second node
	forwarding   []string   // records of the nodes' network namespaces
	acknowledged []string   // writes
}

// prepare gives a directory for clusters, and an image.
func prepare(t *testing.T) (temp, archive string) {
	t.Helper()
	need.Root(t)
	if _, err := os.Stat(binary); err != nil {
		t.Fatal("bin/knarr is not built; run make build")
	}
	temp, err := os.MkdirTemp("", "knarr-dev-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(temp) })
	archive = filepath.Join(temp, "hello.tar")
	if out, err := exec.Command("../tour/image", archive).CombinedOutput(); err != nil {
		need.Skip(t, "needs a static busybox: apt-get install busybox-static: ", err, string(out))
	}
	return temp, archive
}

// newWorld is a cluster that is not up yet, and goes with the test.
func newWorld(t *testing.T, temp string, nodes ...string) *world {
	w := &world{t: t, base: filepath.Join(temp, "clusters"), nodes: nodes}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range nodes {
				b, _ := os.ReadFile(filepath.Join(w.base, "e2e", n+".log"))
				t.Logf("%s.log:\n%s", n, b[max(0, len(b)-8000):])
			}
		}
		_, _ = w.try("dev", "down", "--name", "e2e", "--dir", w.base)
	})
	return w
}

// steps runs parts of a test that build on each other.
func (w *world) steps(all ...step) {
	for _, step := range all {
		if !w.t.Run(step.name, func(t *testing.T) { outer := w.t; w.t = t; defer func() { w.t = outer }(); step.run(w) }) {
			w.t.FailNow()
		}
	}
}

type step struct {
	name string
	run  func(*world)
}

// noTraces takes down a cluster of which everything was killed.
func (w *world) noTraces() {
	w.t.Helper()
	if w.t.Failed() { // the logs are shown at the end
		return
	}
	w.forwarding = forwardingFiles(w.t, w)
	if len(traces(w.t, w)) < 10 { // what is not seen now would not be missed below
		w.t.Errorf("a running cluster shows only as %q", traces(w.t, w))
	}
	w.kill(syscall.SIGKILL)
	for _, pid := range shims(w) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	w.knarr("dev", "down", "--name", "e2e", "--dir", w.base)
	for _, left := range traces(w.t, w) {
		w.t.Errorf("dev down leaves %s", left)
	}
	if _, err := os.Stat(w.base); err == nil {
		w.t.Errorf("%s is left", w.base)
	}
}

func TestDev(t *testing.T) {
	temp, archive := prepare(t)
	w := newWorld(t, temp, "e2e-1", "e2e-2")
	w.nodeAgent = filepath.Join(w.base, "e2e", "e2e-2")

	began := time.Now()
	out := w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--nodes", "2", "--timeout", "30s")
	t.Logf("two nodes Ready with DNS answering after %v\n%s", time.Since(began).Round(time.Millisecond), out)
	t.Setenv("KUBECONFIG", filepath.Join(w.base, "e2e", "kubeconfig"))
	if !strings.Contains(out, "export KUBECONFIG="+os.Getenv("KUBECONFIG")+"\n") {
		t.Errorf("up does not say what to type next:\n%s", out)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	w.client = kubernetes.NewForConfigOrDie(cfg)
	t.Logf("the agent has %.0f MB of anonymous memory", anonymous(w.pid(w.nodeAgent)))
	w.steps([]step{
		{"list", list}, {"image of the other node", func(w *world) { imageOfOther(w, archive) }}, {"images", func(w *world) { images(w, archive) }}, {"pods", pods}, {"pod to pod", podToPod},
		{"service", service}, {"node port", nodePort}, {"address pool", addressPool}, {"names", names}, {"network policies", networkPolicies}, {"logs and exec", logs},
		{"port-forward", portForward}, {"nothing leaves", nothingLeaves}, {"agent killed", agentKilled}, {"server killed", serverKilled},
		{"node name taken", nameTaken},
		{"everything killed", everythingKilled},
	}...)
	w.noTraces()
}

func list(w *world) {
	out := w.knarr("dev", "ls", "--dir", w.base)
	if f := strings.Fields(strings.Split(out, "\n")[1]); f[0] != "e2e" || f[1] != "2" || f[2] != "2" {
		w.t.Errorf("dev ls:\n%s", out)
	}
}

// imageOfOther runs a pod of an image that only the other node has: its registry is none.
func imageOfOther(w *world, archive string) {
	w.knarr("images", "load", "--node", "e2e-1", "--name", "e2e", "--dir", w.base, archive)
	w.knarr("kubectl", "run", "shared", "--image=knarr.test/hello:1", `--overrides={"spec":{"nodeName":"e2e-2","terminationGracePeriodSeconds":0}}`)
	w.knarr("kubectl", "wait", "--for=condition=Ready", "pod/shared", "--timeout=35s")
	w.knarr("kubectl", "delete", "pod", "shared")
	w.knarr("kubectl", "run", "nowhere", "--image=knarr.test/nowhere:1", `--overrides={"spec":{"nodeName":"e2e-2","terminationGracePeriodSeconds":0}}`)
	w.until("no node has the image", func() bool {
		p, err := w.client.CoreV1().Pods("default").Get(context.Background(), "nowhere", metav1.GetOptions{})
		s := p.Status.ContainerStatuses
		return err == nil && len(s) == 1 && s[0].State.Waiting != nil && strings.Contains(s[0].State.Waiting.Message, "knarr.test/nowhere")
	})
	w.knarr("kubectl", "delete", "pod", "nowhere")
}

func images(w *world, archive string) {
	out := w.knarr("images", "load", "--all-nodes", "--name", "e2e", "--dir", w.base, archive)
	if want := "loaded knarr.test/hello:1 on e2e-1\nloaded knarr.test/hello:1 on e2e-2\n"; out != want {
		w.t.Errorf("images load says %q, want %q", out, want)
	}
}

// pods runs one on each node.
func pods(w *world) {
	w.apply(manifest)
	w.knarr("kubectl", "rollout", "status", "daemonset/web", "--timeout=20s")
	list, err := w.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.Spec.NodeName == "e2e-1" {
			w.one = p
		} else {
			w.two = p
		}
	}
	if w.one.Name == "" || w.two.Name == "" {
		w.t.Fatalf("not a pod on each node: %v", list.Items)
	}
	w.knarr("kubectl", "label", "pod", w.one.Name, "node=first")
}

// podToPod goes across nodes both ways, and each sees the other's own address.
func podToPod(w *world) {
	for _, c := range []struct{ from, to corev1.Pod }{{w.one, w.two}, {w.two, w.one}} {
		got := w.wget(c.from, "http://"+c.to.Status.PodIP+":8080")
		if got != "hello from "+c.to.Name+"\n" {
			w.t.Errorf("%s asks %s: %q", c.from.Name, c.to.Name, got)
		}
		if log := w.knarr("kubectl", "logs", c.to.Name); !strings.Contains(log, c.from.Status.PodIP+"]:") {
			w.t.Errorf("%s does not see the address of %s:\n%s", c.to.Name, c.from.Name, log)
		}
	}
}

// service asks one whose only endpoint is on the other node.
func service(w *world) {
	w.until("the service first has an endpoint", func() bool {
		got, err := w.try("kubectl", "exec", w.two.Name, "--", "wget", "-qO-", "http://first")
		return err == nil && got == "hello from "+w.one.Name+"\n"
	})
	if got := w.wget(w.two, "http://first.default.svc.cluster.local"); got != "hello from "+w.one.Name+"\n" {
		w.t.Errorf("from the other node: %q", got)
	}
}

// nodePort asks each node from this host until both pods have answered, and the
// Service kubernetes from a pod.
func nodePort(w *world) {
	// The API server, from the other node; it speaks TLS only, and says so.
	if out, err := w.try("kubectl", "exec", w.two.Name, "--", "wget", "-qO-", "http://kubernetes.default:443"); err == nil || !strings.Contains(out, "400 Bad Request") {
		w.t.Errorf("the API server from a pod: %v\n%s", err, out)
	}
	nodes, err := w.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, n := range nodes.Items {
		seen := map[string]bool{}
		w.until("node port of "+n.Name, func() bool {
			got := get("http://" + n.Status.Addresses[0].Address + ":30080")
			if got != "" {
				seen[got] = true
			}
			return len(seen) == 2
		})
	}
}

// names are answered by the node's own server.
func names(w *world) {
	for _, p := range []corev1.Pod{w.one, w.two} {
		if got := w.knarr("kubectl", "exec", p.Name, "--", "nslookup", "kubernetes.default.svc.cluster.local"); !strings.Contains(got, "Address") {
			w.t.Errorf("on %s: %s", p.Spec.NodeName, got)
		}
	}
	slices, err := w.client.DiscoveryV1().EndpointSlices("kube-system").List(context.Background(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kube-dns"})
	if err != nil || len(slices.Items) != 2 {
		w.t.Errorf("slices of kube-dns: %v, %v", slices, err)
	}
}

// logs reaches the kubelet of the node that joined.
func logs(w *world) {
	if got := w.knarr("kubectl", "logs", w.two.Name); !strings.HasPrefix(got, "serving\n") {
		w.t.Errorf("logs: %q", got)
	}
	if got := w.knarr("kubectl", "exec", w.two.Name, "--", "hostname"); got != w.two.Name+"\n" {
		w.t.Errorf("exec: %q", got)
	}
}

// portForward reaches a port of a pod on the node that joined.
func portForward(w *world) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "kubectl", "port-forward", "pod/"+w.two.Name, ":8080")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	var port int
	if _, err := fmt.Fscanf(out, "Forwarding from 127.0.0.1:%d -> 8080", &port); err != nil {
		w.t.Fatal(err)
	}
	if got := get(fmt.Sprintf("http://127.0.0.1:%d", port)); got != "hello from "+w.two.Name+"\n" {
		w.t.Errorf("got %q", got)
	}
}

// nothingLeaves asks an address that is not this host's.
func nothingLeaves(w *world) {
	began := time.Now()
	if got, err := w.try("kubectl", "exec", w.two.Name, "--", "wget", "-qO-", "http://203.0.113.1"); err == nil {
		w.t.Errorf("an outside address answers: %q", got)
	}
	if took := time.Since(began); took > 20*time.Second {
		w.t.Errorf("refused only after %v", took)
	}
}

// agentKilled starts the node's process again: its containers never notice.
func agentKilled(w *world) {
	w.signal(w.nodeAgent, syscall.SIGKILL)
	if got := get("http://" + w.two.Status.HostIP + ":30080"); got == "" {
		w.t.Error("services stop with the agent")
	}
	w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--timeout", "30s")
	w.unharmed()
	if got := w.wget(w.two, "http://first"); got != "hello from "+w.one.Name+"\n" {
		w.t.Errorf("after the restart: %q", got)
	}
}

// serverKilled leaves the other node to itself for a moment: what it serves goes
// on, names too, and it takes new pods once there is a server again.
func serverKilled(w *world) {
	w.signal(filepath.Join(w.dir(), "e2e-1"), syscall.SIGKILL)
	if got := get("http://" + w.two.Status.HostIP + ":30080"); got == "" {
		w.t.Error("services stop with the server")
	}
	if out, err := exec.Command("nsenter", "--net="+w.spaces()+"/e2e-2.net", "busybox", "nslookup", "web.default.svc.cluster.local", "10.43.0.10").CombinedOutput(); err != nil || !strings.Contains(string(out), "10.43.") {
		w.t.Errorf("names stop with the server: %v\n%s", err, out)
	}
	w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--timeout", "30s")
	w.unharmed()
	w.knarr("kubectl", "run", "late", "--image=knarr.test/hello:1", `--overrides={"spec":{"nodeName":"e2e-2","terminationGracePeriodSeconds":0}}`)
	w.knarr("kubectl", "wait", "--for=condition=Ready", "pod/late", "--timeout=35s")
	w.knarr("kubectl", "delete", "pod", "late")
}

// nameTaken joins as the second node with another key.
func nameTaken(w *world) {
	cmd := exec.Command("nsenter", "--net="+w.spaces()+"/e2e-2.net", binary, "agent", "--config", "/dev/null", "--data-dir", filepath.Join(w.base, "e2e", "thief"),
		"--kubelet-port", "10260", "--server", w.server(), "--token-file", filepath.Join(w.base, "e2e", "e2e-1", "node-token"), "--node-name", "e2e-2", "--node-ip", "172.28.255.9")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--node-name e2e-2 is taken by a machine with another key; give another name, or kubectl delete node e2e-2 if that machine is gone") {
		w.t.Errorf("%v: %s", err, out)
	}
}

// everythingKilled is a crash of all that knarr runs.
func everythingKilled(w *world) {
	w.kill(syscall.SIGKILL)
	w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--timeout", "40s")
	w.unharmed()
}

// unharmed wants the pods to be Running, the same, never restarted.
func (w *world) unharmed() {
	w.t.Helper()
	for _, p := range []corev1.Pod{w.one, w.two} {
		now, err := w.client.CoreV1().Pods("default").Get(context.Background(), p.Name, metav1.GetOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		s := now.Status.ContainerStatuses[0]
		if now.UID != p.UID || s.RestartCount != 0 || s.ContainerID != p.Status.ContainerStatuses[0].ContainerID {
			w.t.Errorf("%s: %v", p.Name, s)
		}
		w.wget(p, "http://127.0.0.1:8080")
	}
}

func (w *world) dir() string { return filepath.Join(w.base, "e2e") }

func (w *world) server() string {
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		w.t.Fatal(err)
	}
	return cfg.Host
}

func (w *world) apply(manifest string) {
	w.t.Helper()
	cmd := exec.Command(binary, "kubectl", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

func (w *world) wget(from corev1.Pod, url string) string {
	w.t.Helper()
	return w.knarr("kubectl", "exec", from.Name, "--", "wget", "-qO-", url)
}

func (w *world) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput()
	return string(out), err
}

func (w *world) knarr(args ...string) string {
	w.t.Helper()
	out, err := w.try(args...)
	if err != nil {
		w.t.Fatalf("knarr %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// until looks every few milliseconds, and fails the test in time: the lease of a
// lost server lasts 16 seconds from the election on.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	deadline := time.After(40 * time.Second)
	for !ok() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			w.t.Fatalf("not in time: %s", what)
		}
	}
}

// pid is the process that holds a data directory.
func (w *world) pid(dir string) int {
	var pid int
	b, err := os.ReadFile(filepath.Join(dir, "lock"))
	if err == nil {
		_, err = fmt.Sscan(string(b), &pid)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return pid
}

// signal ends a node's process, and waits until it has let go of its directory.
func (w *world) signal(dir string, sig syscall.Signal) {
	w.t.Helper()
	if err := syscall.Kill(w.pid(dir), sig); err != nil {
		w.t.Fatal(err)
	}
	lock, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) kill(sig syscall.Signal) {
	for _, n := range w.nodes {
		w.signal(filepath.Join(w.base, "e2e", n), sig)
	}
}
