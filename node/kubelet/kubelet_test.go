package kubelet

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/fakecri"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/podtest"
)

// A node is a kubelet on a fake runtime and a small API.
type node struct {
	t   testing.TB
	api *miniAPI
	rt  *fakecri.Runtime
	dir string
	k   *Kubelet // the one started last
	// config changes what the kubelet is made of; nil: nothing.
	config func(*Config)
	// cgroups takes the place of the machine's; nil: those.
	cgroups *cgroup.Tree
	// sys takes the place of /sys/devices/system.
	sys string
	// bus is the D-Bus in place of the system's.
	bus string
	// measuring is how long the files of a pod, and of all, are waited for; 0: as ever.
	measuring struct{ each, all time.Duration }
	// statfs says how full disks are; nil: the kernel does.
	statfs func(path string, into *unix.Statfs_t) error
}

func newNode(t testing.TB) *node {
	n := &node{t: t, api: newMiniAPI(t), rt: fakecri.New(podtest.Image, "img:2"), dir: t.TempDir()}
	t.Cleanup(n.rt.Close)
	return n
}

// start runs a kubelet and returns what ends it.
func (n *node) start() (stop func()) {
	conn, err := n.rt.Dial()
	if err != nil {
		n.t.Fatal(err)
	}
	cfg := Config{
		Kube: n.api.config(), Runtime: conn, NodeName: "n1", NodeIPs: []net.IP{net.IPv4(10, 0, 0, 1)},
		RootDir: filepath.Join(n.dir, "kubelet"), PodLogsDir: filepath.Join(n.dir, "logs"),
		CgroupParent: "-", Listen: "-",
		Settings: &configuration.Settings{EvictionHard: map[string]string{}, ImageGCHighThresholdPercent: new(int32(100))},
	}
	if n.config != nil {
		n.config(&cfg)
	}
	k, err := New(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	if n.cgroups != nil {
		k.cgroups = n.cgroups
	}
	if n.sys != "" {
		k.sysDir = n.sys
		k.readMachine = func() (machine, error) {
			m, err := readMachine()
			m.cpus = 64 // whatever this machine has: admission is not in the way
			return m, err
		}
	}
	if n.statfs != nil {
		k.statfs = n.statfs
	}
	k.busAddress, k.logindDir = n.bus, n.dir
	k.storage.each, k.storage.all = n.measuring.each, n.measuring.all
	n.k = k
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				n.t.Error(err)
			}
		case <-time.After(10 * time.Second):
			n.t.Error("Run did not return")
		}
		conn.Close()
	}
	n.t.Cleanup(stop) // before the servers it needs
	return stop
}

// until waits for something the kubelet does.
func (n *node) until(what string, f func() bool) {
	n.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(deadline) {
			n.t.Fatalf("%s: did not happen; runtime calls %v, events %v", what, n.rt.Calls(), n.api.events())
		}
		<-tick.C
	}
}

func (n *node) ready(name string) func() bool {
	return func() bool {
		p := n.api.pod(name)
		c := podstatus.FindCondition(p.Status.Conditions, corev1.PodReady)
		return c != nil && c.Status == corev1.ConditionTrue
	}
}

func TestPodLife(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	n.api.addPod(podtest.Pod("web", "a", "b"))
	n.until("ready", n.ready("web"))
	s := n.api.pod("web").Status
	if s.Phase != corev1.PodRunning || s.PodIP == "" || s.HostIP != "10.0.0.1" || s.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("status %+v", s)
	}
	if got := n.rt.Running(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("running %v", got)
	}
	n.until("events", func() bool {
		e := strings.Join(n.api.events(), "\n")
		return strings.Contains(e, "Started: Container started") &&
			strings.Contains(e, `Pulled: Container image "img:1" already present on machine and can be accessed by the pod`)
	})
	n.api.deletePod("web")
	n.until("gone from the API", func() bool { return n.api.pod("web") == nil })
	n.until("gone from the runtime", n.rt.Empty)
	stop()
	removals := 0
	for _, c := range n.rt.Calls() {
		if strings.HasPrefix(c, "RemovePodSandbox") {
			removals++
		}
	}
	if removals != 1 {
		t.Errorf("the sandbox was removed %d times", removals)
	}
}

func TestRestartTouchesNothing(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	n.api.addPod(podtest.Pod("web", "a"))
	n.until("ready", n.ready("web"))
	stop()
	before, version := n.rt.Calls(), n.api.pod("web").ResourceVersion
	stop = n.start()
	n.api.addPod(podtest.Pod("other", "b"))
	n.until("another pod is ready", n.ready("other"))
	stop()
	for _, c := range n.rt.Calls()[len(before):] {
		if strings.HasSuffix(c, " a") || strings.HasSuffix(c, " web") {
			t.Errorf("after the restart: %s", c)
		}
	}
	if v := n.api.pod("web").ResourceVersion; v != version {
		t.Errorf("status was written: version %s, before %s", v, version)
	}
}

func TestCrashLoop(t *testing.T) {
	n := newNode(t)
	defer n.start()()
	n.api.addPod(podtest.Pod("bad", "c"))
	n.until("ready", n.ready("bad"))
	n.rt.Exit("c", 3)
	n.until("restarted at once the first time", func() bool {
		s := n.api.pod("bad").Status.ContainerStatuses[0]
		return s.RestartCount == 1 && s.State.Running != nil
	})
	n.rt.Exit("c", 3)
	n.until("backing off", func() bool {
		s := n.api.pod("bad").Status.ContainerStatuses[0]
		return s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
	})
	s := n.api.pod("bad").Status
	if want := "back-off 10s restarting failed container=c pod=bad_ns(uid-bad)"; s.ContainerStatuses[0].State.Waiting.Message != want {
		t.Errorf("message %q, want %q", s.ContainerStatuses[0].State.Waiting.Message, want)
	}
	if last := s.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 3 || last.Reason != "Error" {
		t.Errorf("last state %+v", last)
	}
	if s.Phase != corev1.PodRunning {
		t.Errorf("phase %s", s.Phase)
	}
	// With another image it has not crashed yet.
	p := n.api.pod("bad")
	p.Spec.Containers[0].Image = "img:2"
	n.api.addPod(p)
	n.until("restarted at once with another image", func() bool {
		s := n.api.pod("bad").Status.ContainerStatuses[0]
		return s.RestartCount == 2 && s.State.Running != nil
	})
	// Nor with other resources, which it may have ended for want of.
	n.rt.Exit("c", 3)
	n.until("backing off with that one", n.waits("bad", "CrashLoopBackOff"))
	n.resizeTo("bad", map[string]any{"requests": map[string]any{"cpu": "20m"}}, 2)
	n.until("restarted at once with other resources", func() bool {
		s := n.api.pod("bad").Status.ContainerStatuses[0]
		return s.RestartCount >= 3 && s.State.Running != nil
	})
}

// TestNotStatic: a pod of the API that calls itself static is not critical for that, and is
// shown and ended as any other.
func TestNotStatic(t *testing.T) {
	n := newNode(t)
	defer n.start()()
	p := podtest.Pod("sly", "c")
	p.Annotations = map[string]string{annConfigSource: "file"}
	if got := fromAPI(p); podspec.IsCritical(got) || isStatic(got) || p.Annotations[annConfigSource] != "file" {
		t.Errorf("annotations %v, in the cache %v", got.Annotations, p.Annotations)
	}
	n.api.addPod(p)
	n.until("shown as ready", n.ready("sly"))
	n.api.deletePod("sly")
	n.until("gone", func() bool { return n.api.pod("sly") == nil })
}

// TestReplacedWhateverItsExit: another image, or a probe that failed, starts a container
// again that ends with 0, also where the policy does not.
func TestReplacedWhateverItsExit(t *testing.T) {
	n := newNode(t)
	defer n.start()()
	p := podtest.WithRestartPolicy(podtest.Pod("once", "c"), corev1.RestartPolicyNever)
	n.api.addPod(p)
	n.until("running", n.ready("once"))
	p = n.api.pod("once")
	p.Spec.Containers[0].Image = "img:2"
	p.Generation++
	n.api.addPod(p)
	n.until("runs with the other image", func() bool {
		s := n.api.pod("once").Status
		if s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed {
			t.Fatalf("the pod has ended: %+v", s)
		}
		c := s.ContainerStatuses[0]
		if c.State.Terminated != nil { // from which the API lets none return that is not to be started again
			t.Fatalf("shown as ended: %+v", c)
		}
		return c.RestartCount == 1 && c.State.Running != nil
	})
	n.rt.Exit("c", 0)
	n.until("succeeded", func() bool { return n.api.pod("once").Status.Phase == corev1.PodSucceeded })
}

func TestInitThenMain(t *testing.T) {
	n := newNode(t)
	n.rt.Started = func(name, _ string) {
		if strings.HasPrefix(name, "init") {
			n.rt.Exit(name, 0)
		}
	}
	defer n.start()()
	p := podtest.Pod("seq", "main")
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	always := corev1.ContainerRestartPolicyAlways
	p.Spec.InitContainers = []corev1.Container{{Name: "init1", Image: podtest.Image}, {Name: "side", Image: podtest.Image, RestartPolicy: &always}, {Name: "init2", Image: podtest.Image}}
	for i := range p.Spec.InitContainers {
		p.Spec.InitContainers[i].ImagePullPolicy = corev1.PullIfNotPresent
	}
	n.api.addPod(p)
	n.until("ready", n.ready("seq"))
	var order []string
	for _, c := range n.rt.Calls() {
		if name, ok := strings.CutPrefix(c, "StartContainer "); ok {
			order = append(order, name)
		}
	}
	if want := []string{"init1", "side", "init2", "main"}; !slices.Equal(order, want) {
		t.Errorf("started %v, want %v", order, want)
	}
	n.rt.Exit("main", 0)
	n.until("succeeded", func() bool { return n.api.pod("seq").Status.Phase == corev1.PodSucceeded })
	if got := n.rt.Running(); len(got) != 0 {
		t.Errorf("still running: %v", got)
	}
}

func TestFailureEvents(t *testing.T) {
	n := newNode(t)
	defer n.start()()
	p := podtest.Pod("nope", "c")
	p.Spec.Containers[0].Image = "missing:1"
	n.api.addPod(p)
	n.until("backing off", func() bool {
		s := n.api.pod("nope").Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "ImagePullBackOff"
	})
	q := podtest.Pod("never", "c")
	q.Spec.Containers[0].Image, q.Spec.Containers[0].ImagePullPolicy = "missing:1", corev1.PullNever
	n.api.addPod(q)
	n.until("refused", func() bool {
		s := n.api.pod("never").Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "ErrImageNeverPull"
	})
	n.api.deletePod("nope")
	n.until("gone", func() bool { return n.api.pod("nope") == nil })
}

func TestStartsWhenTheConfigMapComes(t *testing.T) {
	n := newNode(t)
	defer n.start()()
	p := podtest.Pod("p", "c")
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Key: "k"}}}}
	n.api.addPod(p)
	n.until("waiting for it", func() bool {
		s := n.api.pod("p").Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "CreateContainerConfigError" &&
			s[0].State.Waiting.Message == `configmap "cm" not found`
	})
	n.api.mu.Lock()
	n.api.put("/api/v1/namespaces/ns/configmaps/cm", map[string]any{"kind": "ConfigMap", "apiVersion": "v1",
		"metadata": map[string]any{"name": "cm", "namespace": "ns"}, "data": map[string]any{"k": "v"}}, "ADDED")
	n.api.mu.Unlock()
	n.until("ready", n.ready("p"))
}

// TestNewImageIsOneStep: those who watch a pod whose image changes see the old
// container and then the new one, and no pod that is not ready between.
func TestNewImageIsOneStep(t *testing.T) {
	n := newNode(t)
	defer n.start()()
	n.api.addPod(podtest.Pod("web", "a"))
	n.until("ready", n.ready("web"))
	seen := make(chan watchEvent, 64)
	n.api.mu.Lock()
	n.api.watches[seen] = "/api/v1/namespaces/ns/pods/web"
	o := n.api.objects["/api/v1/namespaces/ns/pods/web"]
	o["metadata"].(map[string]any)["generation"] = 2
	o["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)["image"] = "img:2"
	n.api.put("/api/v1/namespaces/ns/pods/web", o, "MODIFIED")
	n.api.mu.Unlock()
	n.until("the next container is ready", func() bool {
		return n.api.pod("web").Status.ContainerStatuses[0].RestartCount == 1 && n.ready("web")()
	})
	n.api.mu.Lock()
	delete(n.api.watches, seen)
	n.api.mu.Unlock()
	close(seen)
	for e := range seen {
		if !strings.Contains(string(e.body), `"ready":true`) || strings.Contains(string(e.body), `"ready":false`) {
			t.Errorf("seen between: %s", e.body)
		}
	}
}

// TestWhole: calling off what is around a start does not call off the start,
// and a start does not last for ever.
func TestWhole(t *testing.T) {
	around, callOff := context.WithCancel(context.Background())
	ctx, cancel := startContext(around)
	defer cancel()
	callOff()
	if _, bounded := ctx.Deadline(); ctx.Err() != nil || !bounded {
		t.Errorf("%v, bounded %v", ctx.Err(), bounded)
	}
}

func TestForcedDeletionAndOrphans(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	n.api.addPod(podtest.Pod("one", "a"))
	n.api.addPod(podtest.Pod("two", "b"))
	n.until("ready", n.ready("one"))
	n.until("ready", n.ready("two"))
	n.api.dropPod("one")
	n.until("ended", func() bool { return slices.Equal(n.rt.Running(), []string{"b"}) })
	stop()
	n.api.dropPod("two") // while the kubelet is away
	defer n.start()()
	n.until("collected", n.rt.Empty)
}

// TestDriverIsGone: a pod whose volume cannot be unmounted says so, and which
// volume it is.
func TestDriverIsGone(t *testing.T) {
	n := newNode(t)
	defer n.start()()
	n.api.addPod(podtest.Pod("p", "a"))
	n.until("ready", n.ready("p"))
	dir := filepath.Join(n.dir, "kubelet", "pods", "uid-p", "volumes", "kubernetes.io~csi", "pv-1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(dir, "vol_data.json")
	if err := os.WriteFile(record, []byte(`{"volumeHandle":"h","driverName":"d.example"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	n.api.deletePod("p")
	n.until("told", func() bool {
		return strings.Contains(strings.Join(n.api.events(), "\n"), `UnmountVolume.TearDown failed for volume "pv-1": driver name d.example not found in the list of registered CSI drivers: the driver's pod on this node must run until the volume is unmounted`)
	})
	if err := os.Remove(record); err != nil {
		t.Fatal(err)
	}
	n.until("gone", func() bool { return n.api.pod("p") == nil })
}

func TestNodeIsRegistered(t *testing.T) {
	n := newNode(t)
	defer n.start()()
	n.until("node and lease", func() bool {
		n.api.mu.Lock()
		defer n.api.mu.Unlock()
		return n.api.objects["/api/v1/nodes/n1"] != nil && n.api.objects["/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"] != nil
	})
}

// What the kubelet itself adds to the life of a pod, on a runtime that takes
// no time.
func BenchmarkPodLife(b *testing.B) {
	slog.SetLogLoggerLevel(slog.LevelError)
	n := newNode(b)
	defer n.start()()
	n.api.addPod(podtest.Pod("warm", "a"))
	n.until("ready", n.ready("warm"))
	var up, down time.Duration
	for i := 0; b.Loop(); i++ {
		name := "web" + strconv.Itoa(i)
		began := time.Now()
		n.api.addPod(podtest.Pod(name, "a"))
		n.until("ready", n.ready(name))
		up += time.Since(began)
		began = time.Now()
		n.api.deletePod(name)
		n.until("gone", func() bool { return n.api.pod(name) == nil })
		down += time.Since(began)
		n.until("removed", func() bool { return len(n.rt.Running()) == 1 })
	}
	b.ReportMetric(float64(up.Microseconds())/1000/float64(b.N), "ms-to-ready")
	b.ReportMetric(float64(down.Microseconds())/1000/float64(b.N), "ms-to-gone")
}
