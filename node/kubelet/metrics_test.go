package kubelet

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/runtimestate"
	"knarr/node/kubelet/volume"
)

// asked is what a path of metrics answers.
func asked(t *testing.T, k *Kubelet, path string) map[string]*dto.MetricFamily {
	t.Helper()
	w := httptest.NewRecorder()
	host{k}.Metrics()[path].ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	p := expfmt.NewTextParser(model.LegacyValidation)
	all, err := p.TextToMetricFamilies(strings.NewReader(w.Body.String()))
	if w.Code != http.StatusOK || err != nil {
		t.Fatalf("%s: %d, %v", path, w.Code, err)
	}
	return all
}

// total adds up a family's counters, gauges and counts of observations whose labels
// have the value.
func total(f *dto.MetricFamily, label string) (n float64) {
	for _, m := range f.GetMetric() {
		if label == "" || slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetValue() == label }) {
			n += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return n
}

// TestMetricsOfAPod: a pod that starts is counted in what dashboards show, under
// upstream's names.
func TestMetricsOfAPod(t *testing.T) {
	n := newNode(t)
	n.start()
	pod := podtest.Pod("web", "a", "b")
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: podtest.Image}}}
	n.api.addPod(podtest.Use(pod))
	n.until("ready", n.ready("web"))
	n.until("the ephemeral container", func() bool { return slices.Contains(n.rt.Running(), "debug") })
	all := asked(t, n.k, "/metrics")
	for _, c := range []struct {
		name, label string
		want        float64
	}{
		{"kubelet_running_pods", "", 1},
		{"kubelet_running_containers", "running", 3},
		{"kubelet_desired_pods", "", 1},
		{"kubelet_active_pods", "", 1},
		{"kubelet_node_name", "n1", 1},
		{"kubernetes_build_info", "v1.36.3", 1},
		{"kubelet_started_pods_total", "", 1},
		{"kubelet_started_pods_errors_total", "", 0},
		{"kubelet_started_containers_total", "container", 2},
		{"kubelet_runtime_operations_total", "run_podsandbox", 1},
		{"kubelet_runtime_operations_duration_seconds", "start_container", 3},
		{"kubelet_runtime_operations_errors_total", "start_container", 0},
		{"kubelet_run_podsandbox_duration_seconds", "", 1},
		{"kubelet_pod_start_duration_seconds", "", 1},
		{"kubelet_containers_per_pod_count", "", 1},
		{"kubelet_image_manager_ensure_image_requests_total", "ifnotpresent", 3},
		{"kubelet_image_manager_ensure_image_requests_total", "false", 3},
		{"kubelet_working_pods", "", 1},
		{"kubelet_working_pods", "sync", 1},
		{"kubelet_managed_ephemeral_containers", "", 1},
		{"kubelet_pod_worker_start_duration_seconds", "", 1},
		{"storage_operation_duration_seconds", "kubernetes.io/empty-dir", 1},
		{"volume_manager_total_volumes", "actual_state_of_world", 1},
		{"volume_manager_total_volumes", "desired_state_of_world", 1},
	} {
		if got := total(all[c.name], c.label); got != c.want {
			t.Errorf("%s %s: %v, want %v", c.name, c.label, got, c.want)
		}
	}
	for _, name := range []string{"kubelet_evented_pleg_connection_success_count", "kubelet_evented_pleg_connection_latency_seconds", "kubelet_pleg_relist_duration_seconds", "kubelet_pod_worker_duration_seconds",
		"kubelet_pod_status_sync_duration_seconds", "kubelet_cgroup_version", "process_start_time_seconds", "go_goroutines"} {
		if total(all[name], "") <= 0 {
			t.Errorf("%s is missing", name)
		}
	}
	upstreamNames(t, all)
}

// upstreamNames checks that names, kinds and labels are upstream's.
func upstreamNames(t *testing.T, all map[string]*dto.MetricFamily) {
	t.Helper()
	b, err := os.ReadFile("testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range all {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "knarr_") {
			continue
		}
		for _, m := range f.Metric {
			line := strings.TrimSpace(name + " " + strings.ToLower(f.GetType().String()) + " " + labelsOf(m))
			if !strings.Contains(string(b), "\n"+line+"\n") {
				t.Errorf("upstream has no %q", line)
			}
		}
	}
}

// absentMetrics are those of upstream's promise that are not here, by how their names begin,
// and why.
var absentMetrics = map[string]string{
	"workqueue_":                  "there are no work queues: each pod has a worker of its own",
	"registered_metrics_total":    "of upstream's library, which knows none of this kubelet's own metrics",
	"hidden_metrics_total":        "no metric is hidden",
	"disabled_metrics_total":      "no metric can be disabled",
	"running_managed_controllers": "of controllers, which a kubelet has none of",
}

func whyAbsent(name string) string {
	for prefix, why := range absentMetrics {
		if strings.HasPrefix(name, prefix) {
			return why
		}
	}
	return ""
}

// TestMetricsNames: all metrics of /metrics are in the list, by name and labels, and all that
// the list has are told of, whether they have values now or not. What upstream promises is at
// its path, or there is a reason why it is not.
func TestMetricsNames(t *testing.T) {
	n := newNode(t)
	n.provide()
	provided := n.config
	n.config = func(c *Config) { // there are metrics of these alone
		provided(c)
		c.Settings.FeatureGates = map[string]bool{"MemoryQoS": true}
	}
	n.start()
	n.until("the runtime", n.k.up.isOpen)
	got := map[string]map[string]string{"/metrics": {}, "/metrics/resource": {}, "/metrics/probes": {}, "/metrics/slis": {}}
	describe := func(path string, all ...prometheus.Collector) {
		for _, c := range all {
			for name, labels := range described(c) {
				got[path][name] = labels
			}
		}
	}
	describe("/metrics", append(n.k.metricsOfNow(), n.k.metrics.registry)...)
	describe("/metrics/resource", resourceCollector{})
	describe("/metrics/probes", n.k.prober.Metrics()...)
	n.k.health.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/healthz", nil))
	for name, f := range asked(t, n.k, "/metrics/slis") {
		got["/metrics/slis"][name] = labelsOf(f.Metric[0])
	}
	listed := map[string]bool{}
	for _, f := range lines(t, "testdata/metrics.txt") {
		name, labels := f[0], f[2]
		listed[name] = true
		switch is, ok := got["/metrics"][name]; {
		case strings.HasPrefix(name, "rest_client_"): // of the process
		case !ok:
			t.Errorf("%s is in the list, and not told of any more", name)
		case is != labels:
			t.Errorf("%s has labels %q, the list %q", name, is, labels)
		}
	}
	for name := range got["/metrics"] {
		own := strings.HasPrefix(name, "knarr_") || strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_")
		if !own && !listed[name] {
			t.Errorf("%s is told of, and not in the list", name)
		}
	}
	for _, f := range lines(t, "testdata/promisedmetrics.txt") {
		path, name, labels, why := f[0], f[2], f[3], whyAbsent(f[2])
		switch is, ok := got[path][name]; {
		case ok == (why != ""):
			t.Errorf("%s at %s: told of: %v, why not: %q", name, path, ok, why)
		case ok && is != labels:
			t.Errorf("%s has labels %q, upstream's %q", name, is, labels)
		}
	}
}

// lines are those of a file without comments, by their words; what a line has no word for is "".
func lines(t *testing.T, file string) (all [][]string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "#") {
			all = append(all, append(strings.Fields(line), "", ""))
		}
	}
	return all
}

// described are the labels of what a collector may tell, by name.
func described(c prometheus.Collector) map[string]string {
	all, descs := map[string]string{}, make(chan *prometheus.Desc, 1024)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		_, rest, _ := strings.Cut(d.String(), `fqName: "`)
		name, rest, _ := strings.Cut(rest, `"`)
		_, rest, _ = strings.Cut(rest, "constLabels: {")
		fixed, rest, _ := strings.Cut(rest, "}, variableLabels: {")
		var labels []string
		for _, l := range append(strings.Split(fixed, ","), strings.Split(strings.TrimSuffix(rest, "}}"), ",")...) {
			if l, _, _ = strings.Cut(l, "="); l != "" {
				labels = append(labels, l)
			}
		}
		slices.Sort(labels)
		all[name] = strings.Join(labels, ",")
	}
	return all
}

func labelsOf(m *dto.Metric) string {
	var labels []string
	for _, l := range m.Label {
		labels = append(labels, l.GetName())
	}
	slices.Sort(labels)
	return strings.Join(labels, ",")
}

// TestCountPods: what a kubelet has at the moment.
func TestCountPods(t *testing.T) {
	static := podtest.Pod("s", "c")
	static.Annotations = map[string]string{annConfigSource: "file"}
	done := podtest.Pod("d", "c")
	claim := podtest.Pod("v", "c")
	claim.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	container := func(state cri.ContainerState) *runtimestate.Container {
		return &runtimestate.Container{ContainerStatus: &cri.ContainerStatus{State: state}}
	}
	n := countPods([]*shown{
		{pod: static, status: &corev1.PodStatus{}, observed: &runtimestate.Pod{
			Sandboxes:  []runtimestate.Sandbox{{PodSandboxStatus: &cri.PodSandboxStatus{State: cri.PodSandboxState_SANDBOX_READY}}},
			Containers: []*runtimestate.Container{container(cri.ContainerState_CONTAINER_RUNNING), container(cri.ContainerState_CONTAINER_UNKNOWN)},
		}},
		{pod: done, status: &corev1.PodStatus{Phase: corev1.PodSucceeded}, ended: true},
		{pod: claim, status: &corev1.PodStatus{}, volumes: map[string]volume.Mounted{"data": {Kind: "kubernetes.io~csi"}}},
	})
	if n.running != 1 || n.containers["running"] != 1 || n.containers["unknown"] != 1 || n.desired[true] != 1 || n.desired[false] != 2 ||
		n.active[true] != 1 || n.active[false] != 1 || n.volumes[[2]string{"kubernetes.io/csi", "actual_state_of_world"}] != 1 ||
		n.volumes[[2]string{"kubernetes.io/csi", "desired_state_of_world"}] != 1 {
		t.Errorf("%+v", n)
	}
}

// TestRequestLabels: whatever is asked for, there are few of them.
func TestRequestLabels(t *testing.T) {
	for path, want := range map[string]string{
		"GET /metrics/cadvisor": "GET metrics/cadvisor readwrite false", "GET /metrics": "GET metrics readwrite false",
		"POST /exec/a/b/c": "POST exec readwrite true", "GET /containerLogs/n/p/c?follow=true": "GET containerLogs readwrite true",
		"GET /execute": "GET other readwrite false", "STRANGE /x": "other other readwrite false",
	} {
		method, url, _ := strings.Cut(path, " ")
		if got := strings.Join(requestLabels(httptest.NewRequest(method, url, nil)), " "); got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
}

func TestPodGroups(t *testing.T) {
	pod := podtest.Pod("p", "c")
	s := &shown{pod: pod, status: &corev1.PodStatus{}, observed: &runtimestate.Pod{
		Sandboxes: []runtimestate.Sandbox{{PodSandboxStatus: &cri.PodSandboxStatus{Id: "s", State: cri.PodSandboxState_SANDBOX_READY}}},
		Containers: []*runtimestate.Container{
			{ContainerStatus: &cri.ContainerStatus{Id: "i", Image: &cri.ImageSpec{Image: "app:1"}, State: cri.ContainerState_CONTAINER_RUNNING,
				Labels: map[string]string{"io.kubernetes.container.name": "c"}}},
			{ContainerStatus: &cri.ContainerStatus{Id: "old", State: cri.ContainerState_CONTAINER_EXITED}},
		},
	}}
	var got []string
	for _, g := range podGroups(s, "/kubepods/pod1", "containerd", "pause") {
		got = append(got, strings.Join([]string{g.Path, g.Name, g.Image, g.Pod, g.Container, yesNo(g.Network)}, " "))
	}
	want := []string{"/kubepods/pod1   p  false", "/kubepods/pod1/s s pause p  true", "/kubepods/pod1/i i app:1 p c false"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	slice := podGroups(s, "/kubepods.slice/kubepods-pod1.slice", "containerd", "pause")
	if slice[2].Path != "/kubepods.slice/kubepods-pod1.slice/cri-containerd-i.scope" || slice[2].Name != "i" {
		t.Errorf("of systemd's: %+v", slice[2])
	}
	if g := ownCgroup("2:cpuacct:/x\n1:cpu,cpuset:/a/b\n0::/c"); g != "/a/b" {
		t.Errorf("own group %q", g)
	}
	if g := ownCgroup("0::/system.slice/k.service"); g != "/system.slice/k.service" {
		t.Errorf("own group %q", g)
	}
}

// A container that has ended is counted once, by its kind, code and reason.
func TestTerminatedContainers(t *testing.T) {
	m := newMetrics()
	ended := func(name string, code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}}}
	}
	one := &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{ended("a", 139), {Name: "b"}}}
	two := &corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{ended("i", 1)}, ContainerStatuses: []corev1.ContainerStatus{ended("a", 139), ended("b", 139)}}
	m.terminated(nil, one)
	m.terminated(one, two)
	m.terminated(two, two)
	value := func(kind, code string) float64 {
		var d dto.Metric
		if err := m.containersTerminated.WithLabelValues(kind, code, "Error").Write(&d); err != nil {
			t.Fatal(err)
		}
		return d.Counter.GetValue()
	}
	if a, i := value("container", "139"), value("init_container", "1"); a != 2 || i != 1 {
		t.Error(a, i)
	}
}

// TestRuntimeMetrics: the runtime's own are among them.
func TestRuntimeMetrics(t *testing.T) {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "runtime_total", Help: "x"})
	all, err := newMetrics(c).registry.Gather()
	if err != nil || !slices.ContainsFunc(all, func(f *dto.MetricFamily) bool { return f.GetName() == "runtime_total" }) {
		t.Error("the runtime's is not shown:", err)
	}
}

// TestRejectionReasons: what pods ask for does not make labels.
func TestRejectionReasons(t *testing.T) {
	m := newMetrics()
	for _, reason := range []string{"OutOfcpu", "OutOfhugepages-3Mi", "OutOfexample.com/a", "NodeAffinity", "NodePorts", "Evicted"} {
		m.rejected(reason)
	}
	for reason, want := range map[string]float64{"OutOfcpu": 1, "OutOfExtendedResources": 2, "Other": 2, "Evicted": 1} {
		var d dto.Metric
		if err := m.rejections.WithLabelValues(reason).Write(&d); err != nil || d.GetCounter().GetValue() != want {
			t.Errorf("%s: %v, %v", reason, d.GetCounter().GetValue(), err)
		}
	}
}
