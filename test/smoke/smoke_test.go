package smoke

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"knarr/internal/need"
)

const manifest = `
apiVersion: v1
kind: Namespace
metadata: {name: smoke}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: smoke}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: app
        image: knarr.test/app:1
        args: ["-version=1"]
        command: ["/app"]
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
        resources: {limits: {memory: 64Mi, cpu: 500m}, requests: {cpu: 10m, memory: 16Mi}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: smoke}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 31080}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: smoke}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: knarr.test/app:1, command: ["/bin/sleep", "100000"]}]
`

// figures are what the README shows.
type figure struct {
	name  string
	value float64
	unit  string
	bar   float64
}

// TestSmoke is a cluster's day, from the first start to the last trace gone.
func TestSmoke(t *testing.T) {
	need.Root(t)
	if _, err := os.Stat(binary); err != nil {
		t.Fatal("bin/knarr is not built; run make build")
	}
	before := look(t)
	archive := buildImage(t)
	c := newCluster(t)
	var figures []figure

	began := time.Now()
	c.start()
	c.connect()
	c.wait("/readyz", 10*time.Second, func(ctx context.Context) (bool, error) { return c.readyz(ctx), nil })
	figures = append(figures, figure{"start to /readyz", time.Since(began).Seconds() * 1000, "ms", 700})
	c.wait("node Ready", 20*time.Second, c.nodeReady)
	c.wait("DNS", 20*time.Second, func(context.Context) (bool, error) {
		return resolves("kubernetes.default.svc.cluster.local.", "10.143.0.10:53") == "10.143.0.1", nil
	})
	figures = append(figures, figure{"start to Ready with DNS answering", time.Since(began).Seconds() * 1000, "ms", 2000})
	if out, err := exec.Command(binary, "images", "--data-dir", c.dir, "load", archive).CombinedOutput(); err != nil {
		t.Fatalf("knarr images load: %v\n%s", err, out)
	}

	empty := look(t)
	c.apply(manifest)
	c.kubectl("-n", "smoke", "rollout", "status", "deployment/web", "--timeout=60s")
	c.kubectl("-n", "smoke", "wait", "--for=condition=Ready", "pod/client", "--timeout=30s")
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"service", service}, {"scale", scale}, {"ingress", ingress}, {"gRPC", grpcRoute}, {"rolling update", rollingUpdate}, {"killed process", killedProcess},
		{"logs", logs}, {"exec", execs}, {"attach", attach}, {"port-forward", portForward}, {"cp", cp},
		{"liveness", liveness}, {"crash loop", crashLoop}, {"server killed", serverKilled},
	} {
		if !t.Run(step.name, func(t *testing.T) { outer := c.t; c.t = t; defer func() { c.t = outer }(); step.run(t, c) }) {
			t.FailNow()
		}
	}
	figures = append(figures, figure{"warm pod start, p50", podStart(t, c), "ms", 200})
	t.Run("namespace", func(t *testing.T) { namespace(t, c, empty) })

	time.Sleep(idleTime(t))
	var anon, all float64
	for _, pid := range processes(c.dir) {
		a, r := resident(pid)
		anon, all = anon+a, all+r
		t.Logf("process %d: %.0f MB anonymous, %.0f MB resident", pid, a, r)
	}
	figures = append(figures, figure{"idle memory, anonymous", anon, "MB", 150}, figure{"idle memory, resident with the program's file", all, "MB", 150})

	if took := c.stop(syscall.SIGTERM); took > 2500*time.Millisecond {
		t.Errorf("SIGTERM took %v", took)
	}
	if out, err := exec.Command(binary, "down", "--data-dir", c.dir, "--purge").CombinedOutput(); err != nil {
		t.Fatalf("knarr down: %v\n%s", err, out)
	}
	if d := before.differences(look(t)); len(d) > 0 {
		t.Errorf("the machine is not as it was: %s", strings.Join(d, "; "))
	}
	if p := processes(c.dir); len(p) > 0 {
		t.Errorf("processes left: %v", p)
	}
	for _, f := range figures {
		t.Logf("%-48s %8.0f %s (bar %.0f)", f.name, f.value, f.unit, f.bar)
	}
}

// idleTime is how long a cluster rests before its memory is read.
func idleTime(t *testing.T) time.Duration {
	s := os.Getenv("KNARR_SMOKE_IDLE")
	if s == "" {
		return time.Minute
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("KNARR_SMOKE_IDLE: %v", err)
	}
	return d
}

func buildImage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	app := filepath.Join(dir, "app")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", app, "./app")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build app: %v\n%s", err, out)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal("busybox-static is not installed; make test installs it")
	}
	archive := filepath.Join(dir, "image.tar")
	if err := writeImage(archive, image, busybox, app); err != nil {
		t.Fatal(err)
	}
	return archive
}

func (c *cluster) nodeReady(ctx context.Context) (bool, error) {
	n, err := c.client.CoreV1().Nodes().Get(ctx, "smoke", metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status == corev1.ConditionTrue, nil
		}
	}
	return false, nil
}

func resolves(name, server string) string {
	q := new(dns.Msg)
	q.SetQuestion(name, dns.TypeA)
	m, _, err := (&dns.Client{Timeout: 200 * time.Millisecond}).Exchange(q, server)
	if err != nil || len(m.Answer) == 0 {
		return ""
	}
	a, ok := m.Answer[0].(*dns.A)
	if !ok {
		return ""
	}
	return a.A.String()
}

// get asks url from inside the client pod.
func (c *cluster) get(url string) (string, error) {
	return c.try("-n", "smoke", "exec", "client", "--", "/app", "-get", url)
}

func service(t *testing.T, c *cluster) {
	svc, err := c.client.CoreV1().Services("smoke").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), "smoke", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	urls := map[string]string{
		"ClusterIP": "http://" + svc.Spec.ClusterIP, "DNS name": "http://web", "full DNS name": "http://web.smoke.svc.cluster.local",
		"NodePort": fmt.Sprintf("http://%s:31080", node.Status.Addresses[0].Address),
	}
	for what, url := range urls {
		if out, err := c.get(url); err != nil || !strings.Contains(out, "version=1") {
			t.Errorf("%s (%s) from a pod: %v %s", what, url, err, out)
		}
	}
	for _, url := range []string{urls["ClusterIP"], urls["NodePort"]} {
		if body, err := fetch(url); err != nil || !strings.Contains(body, "version=1") {
			t.Errorf("%s from the node: %v %s", url, err, body)
		}
	}
}

func fetch(url string) (string, error) {
	client := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func scale(t *testing.T, c *cluster) {
	c.kubectl("-n", "smoke", "scale", "deployment/web", "--replicas=5")
	c.kubectl("-n", "smoke", "rollout", "status", "deployment/web", "--timeout=60s")
	if out := c.kubectl("-n", "smoke", "get", "deployment", "web", "--no-headers"); !strings.Contains(out, "5/5") {
		t.Errorf("after scaling: %s", out)
	}
}

// load asks the Service from a pod of its own while change happens.
func load(t *testing.T, c *cluster, change func()) {
	t.Helper()
	c.apply(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"load","namespace":"smoke"},"spec":{"restartPolicy":"Never","terminationGracePeriodSeconds":5,
		"containers":[{"name":"c","image":"` + c.image + `","command":["/app","-load","http://web.smoke.svc.cluster.local"]}]}}`)
	c.kubectl("-n", "smoke", "wait", "--for=condition=Ready", "pod/load", "--timeout=30s")
	change()
	// What was asked last may still wait for its answer: let some more pass.
	before, _, _ := loadCount(c)
	var good, bad int
	c.wait("more answers under load", 30*time.Second, func(context.Context) (bool, error) {
		var out string
		good, bad, out = loadCount(c)
		return good >= before+20, fmt.Errorf("%d answered: %s", good, out)
	})
	if _, _, out := loadCount(c); bad != 0 || good < 20 {
		t.Errorf("%d requests answered, %d failed:\n%s", good, bad, strings.Join(regexp.MustCompile(`failed:.*`).FindAllString(out, 5), "\n"))
	}
	t.Logf("%d requests answered, %d failed", good, bad)
	c.kubectl("-n", "smoke", "delete", "pod", "load", "--timeout=30s")
}

// loadCount is what the load says of itself last.
func loadCount(c *cluster) (good, bad int, out string) {
	out, _ = c.try("-n", "smoke", "logs", "load")
	counts := regexp.MustCompile(`good=(\d+) bad=(\d+)`).FindAllStringSubmatch(out, -1)
	if len(counts) > 0 {
		last := counts[len(counts)-1]
		good, _ = strconv.Atoi(last[1])
		bad, _ = strconv.Atoi(last[2])
	}
	return good, bad, out
}

func rollingUpdate(t *testing.T, c *cluster) {
	load(t, c, func() {
		c.kubectl("-n", "smoke", "patch", "deployment", "web", "--type=json", "-p", `[{"op":"replace","path":"/spec/template/spec/containers/0/args","value":["-version=2"]}]`)
		c.kubectl("-n", "smoke", "rollout", "status", "deployment/web", "--timeout=120s")
	})
	c.wait("only version 2 answering", 30*time.Second, func(context.Context) (bool, error) {
		for range 10 {
			if out, err := c.get("http://web"); err != nil || !strings.Contains(out, "version=2") {
				return false, fmt.Errorf("%v %s", err, out)
			}
		}
		return true, nil
	})
}

// pods are the running pods of the Deployment.
func (c *cluster) pods(ctx context.Context) []corev1.Pod {
	list, err := c.client.CoreV1().Pods("smoke").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func killedProcess(t *testing.T, c *cluster) {
	pod := c.pods(t.Context())[0]
	pid := 0
	for _, p := range pidsOf("/app") {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p))
		if strings.Contains(string(b), string(pod.UID)) {
			pid = p
		}
	}
	if pid == 0 {
		t.Fatalf("no process of pod %s found", pod.Name)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	took := c.wait("restart of the killed container", 20*time.Second, func(ctx context.Context) (bool, error) {
		p, err := c.client.CoreV1().Pods("smoke").Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		s := p.Status.ContainerStatuses[0]
		return s.RestartCount == 1 && s.Ready && s.LastTerminationState.Terminated != nil && s.LastTerminationState.Terminated.ExitCode == 137, nil
	})
	t.Logf("restarted and Ready after %v", took.Round(time.Millisecond))
}

func pidsOf(program string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if name, _, _ := bytes.Cut(b, []byte{0}); string(name) == program {
			pids = append(pids, pid)
		}
	}
	return pids
}

func logs(t *testing.T, c *cluster) {
	pod := c.pods(t.Context())[0].Name
	if out := c.kubectl("-n", "smoke", "logs", pod); !strings.Contains(out, "serving version 2") {
		t.Errorf("logs: %q", out)
	}
	c.apply(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"talker","namespace":"smoke"},"spec":{"terminationGracePeriodSeconds":0,
		"containers":[{"name":"c","image":"` + c.image + `","command":["/bin/sh","-c","i=0; while true; do echo line $i; i=$((i+1)); sleep 0.1; done"]}]}}`)
	c.kubectl("-n", "smoke", "wait", "--for=condition=Ready", "pod/talker", "--timeout=30s")
	for wait := 1500 * time.Millisecond; ; wait *= 3 { // kubectl itself takes long on a busy machine
		end := c.background("-n", "smoke", "logs", "-f", "talker")
		time.Sleep(wait)
		out := end()
		if strings.Contains(out, "line 0") && strings.Count(out, "line") >= 8 {
			break
		}
		if wait > 10*time.Second {
			t.Errorf("logs -f gave %q", out)
			break
		}
	}
	if out := c.kubectl("-n", "smoke", "logs", "talker", "--tail=2"); strings.Count(out, "line") != 2 {
		t.Errorf("logs --tail=2 gave %q", out)
	}
}

func execs(t *testing.T, c *cluster) {
	if out := c.kubectl("-n", "smoke", "exec", "client", "--", "echo", "hello"); out != "hello\n" {
		t.Errorf("exec gave %q", out)
	}
	if out, err := c.try("-n", "smoke", "exec", "client", "--", "sh", "-c", "exit 7"); err == nil || !strings.Contains(out, "exit code 7") {
		t.Errorf("exec of a failing command: %v %q", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	in := c.command(ctx, "-n", "smoke", "exec", "-i", "client", "--", "cat")
	in.Stdin = strings.NewReader("through the pipe")
	if out, err := in.CombinedOutput(); err != nil || string(out) != "through the pipe" {
		t.Errorf("exec -i: %v %q", err, out)
	}
	// script gives kubectl a terminal.
	inner := c.command(ctx, "-n", "smoke", "exec", "-it", "client", "--", "sh", "-c", "test -t 0 && echo terminal")
	tty := exec.CommandContext(ctx, "script", "-qec", strings.Join(quoted(inner.Args), " "), "/dev/null")
	tty.Env = inner.Env
	if out, err := tty.CombinedOutput(); err != nil || !strings.Contains(string(out), "terminal") {
		t.Errorf("exec -it: %v %q", err, out)
	}
}

func quoted(args []string) []string {
	q := make([]string, len(args))
	for i, a := range args {
		q[i] = "'" + a + "'"
	}
	return q
}

func attach(t *testing.T, c *cluster) {
	end := c.background("-n", "smoke", "attach", "talker")
	time.Sleep(1500 * time.Millisecond)
	if out := end(); strings.Count(out, "line ") < 5 {
		t.Errorf("attach gave %q", out)
	}
	c.kubectl("-n", "smoke", "delete", "pod", "talker", "--timeout=30s")
}

func portForward(t *testing.T, c *cluster) {
	port := freePort(t)
	end := c.background("-n", "smoke", "port-forward", "deployment/web", fmt.Sprintf("%d:8080", port))
	defer end()
	c.wait("port-forward", 15*time.Second, func(context.Context) (bool, error) {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false, err
		}
		conn.Close()
		body, err := fetch(fmt.Sprintf("http://127.0.0.1:%d", port))
		return err == nil && strings.Contains(body, "version=2"), err
	})
}

func cp(t *testing.T, c *cluster) {
	dir := t.TempDir()
	want := bytes.Repeat([]byte("knarr\n"), 50000)
	if err := os.WriteFile(filepath.Join(dir, "out"), want, 0o600); err != nil {
		t.Fatal(err)
	}
	c.kubectl("-n", "smoke", "cp", filepath.Join(dir, "out"), "client:/tmp/file")
	c.kubectl("-n", "smoke", "cp", "client:/tmp/file", filepath.Join(dir, "in"))
	if got, err := os.ReadFile(filepath.Join(dir, "in")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("copied there and back: %d bytes, %v; want %d", len(got), err, len(want))
	}
}

func liveness(t *testing.T, c *cluster) {
	c.apply(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"sick","namespace":"smoke"},"spec":{"terminationGracePeriodSeconds":1,
		"containers":[{"name":"c","image":"` + c.image + `","livenessProbe":{"httpGet":{"path":"/healthz","port":8080},"periodSeconds":1,"failureThreshold":2}}]}}`)
	c.kubectl("-n", "smoke", "wait", "--for=condition=Ready", "pod/sick", "--timeout=30s")
	pod, err := c.client.CoreV1().Pods("smoke").Get(t.Context(), "sick", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Without a readiness probe a pod is Ready before its program listens.
	c.wait("answer of the pod", 10*time.Second, func(context.Context) (bool, error) {
		_, err := fetch("http://" + pod.Status.PodIP + ":8080/sicken")
		return err == nil, err
	})
	c.wait("restart by the liveness probe", 30*time.Second, func(ctx context.Context) (bool, error) {
		p, err := c.client.CoreV1().Pods("smoke").Get(ctx, "sick", metav1.GetOptions{})
		return err == nil && p.Status.ContainerStatuses[0].RestartCount == 1 && p.Status.ContainerStatuses[0].Ready, err
	})
	c.wait("event of the probe", 10*time.Second, func(context.Context) (bool, error) {
		out := c.kubectl("-n", "smoke", "get", "events", "--field-selector", "involvedObject.name=sick")
		return strings.Contains(out, "Unhealthy") && strings.Contains(out, "Liveness probe failed: HTTP probe failed with statuscode: 500") && strings.Contains(out, "Killing"), fmt.Errorf("%s", out)
	})
	c.kubectl("-n", "smoke", "delete", "pod", "sick", "--timeout=30s")
}

func crashLoop(t *testing.T, c *cluster) {
	c.apply(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"crash","namespace":"smoke"},"spec":{"terminationGracePeriodSeconds":0,
		"containers":[{"name":"c","image":"` + c.image + `","command":["/bin/sh","-c","exit 3"]}]}}`)
	c.wait("CrashLoopBackOff", 30*time.Second, func(ctx context.Context) (bool, error) {
		p, err := c.client.CoreV1().Pods("smoke").Get(ctx, "crash", metav1.GetOptions{})
		if err != nil || len(p.Status.ContainerStatuses) == 0 {
			return false, err
		}
		s := p.Status.ContainerStatuses[0]
		return s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" && s.RestartCount > 0 &&
			s.LastTerminationState.Terminated != nil && s.LastTerminationState.Terminated.ExitCode == 3, nil
	})
	if out := c.kubectl("-n", "smoke", "get", "pod", "crash"); !strings.Contains(out, "CrashLoopBackOff") {
		t.Errorf("kubectl get says %s", out)
	}
	c.kubectl("-n", "smoke", "delete", "pod", "crash", "--timeout=30s")
}

// serverKilled ends knarr without warning under load: no container restarts and
// no request fails.
func serverKilled(t *testing.T, c *cluster) {
	before := map[string]string{}
	for _, p := range c.pods(t.Context()) {
		before[p.Name] = p.Status.ContainerStatuses[0].ContainerID
	}
	load(t, c, func() {
		c.stop(syscall.SIGKILL)
		began := time.Now()
		c.start()
		c.wait("/readyz after kill -9", 20*time.Second, func(ctx context.Context) (bool, error) { return c.readyz(ctx), nil })
		c.wait("node Ready after kill -9", 20*time.Second, c.nodeReady)
		t.Logf("back after %v", time.Since(began).Round(time.Millisecond))
		time.Sleep(3 * time.Second)
	})
	for _, p := range c.pods(t.Context()) {
		if s := p.Status.ContainerStatuses[0]; before[p.Name] != s.ContainerID {
			t.Errorf("pod %s: container %s before, %s (%d restarts) after", p.Name, before[p.Name], s.ContainerID, s.RestartCount)
		}
	}
	if len(c.pods(t.Context())) != len(before) {
		t.Errorf("%d pods before, %d after", len(before), len(c.pods(t.Context())))
	}
}

// podStart is the median time in ms from the create call to Ready on a watch.
func podStart(t *testing.T, c *cluster) float64 {
	var times []float64
	pods := c.client.CoreV1().Pods("smoke")
	for i := range 11 {
		name := fmt.Sprint("quick-", i)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		w, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(0)),
			Containers:                    []corev1.Container{{Name: "c", Image: c.image, Command: []string{"/bin/sleep", "1000"}}},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for ev := range w.ResultChan() {
			if p, ok := ev.Object.(*corev1.Pod); ok && ev.Type != watch.Deleted && ready(p) {
				times = append(times, time.Since(began).Seconds()*1000)
				break
			}
		}
		w.Stop()
		cancel()
		if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.wait("pod "+name+" gone", 20*time.Second, func(ctx context.Context) (bool, error) {
			_, err := pods.Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
	}
	if len(times) < 11 {
		t.Fatalf("only %d of 11 pods became Ready", len(times))
	}
	slices.Sort(times)
	t.Logf("warm pod starts, ms: %.0f", times)
	return times[len(times)/2]
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// namespace deletes everything; the node must be as it was before the first pod.
func namespace(t *testing.T, c *cluster, empty machine) {
	list, err := c.client.CoreV1().Pods("smoke").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) == 0 {
		t.Fatal("no pods to delete")
	}
	c.kubectl("delete", "namespace", "smoke", "--timeout=60s")
	var left []string
	c.wait("no trace of the namespace's pods", 20*time.Second, func(context.Context) (bool, error) {
		left = slices.DeleteFunc(empty.differences(look(t)), func(d string) bool {
			// The groups that pods' groups are in come with the first pod and stay.
			return strings.HasPrefix(d, "new: cgroup") && !strings.Contains(d, "/pod")
		})
		if n := len(pidsOf("/app")); n > 0 {
			left = append(left, fmt.Sprint(n, " processes /app"))
		}
		return len(left) == 0, fmt.Errorf("left: %s", strings.Join(left, "; "))
	})
}
