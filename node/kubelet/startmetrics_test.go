package kubelet

import (
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/podtest"
)

// TestUnion: pulls at the same time, and an init container meanwhile, count once.
func TestUnion(t *testing.T) {
	at := func(from, until int64) span { return span{time.Unix(from, 0), time.Unix(until, 0)} }
	for _, c := range []struct {
		all  []span
		want time.Duration
	}{
		{nil, 0}, {[]span{at(1, 3)}, 2}, {[]span{at(1, 3), at(5, 6)}, 3}, {[]span{at(5, 6), at(1, 3), at(2, 4)}, 4},
		{[]span{at(1, 9), at(2, 3), at(8, 10)}, 9}, {[]span{at(3, 1)}, 0},
	} {
		if got := union(c.all); got != c.want*time.Second {
			t.Errorf("%v: %v", c.all, got)
		}
	}
}

// TestPullTimes: tries that fail belong to the pull that succeeds, and no pod is remembered
// without end.
func TestPullTimes(t *testing.T) {
	p, at := pullTimes{}, func(s int64) time.Time { return time.Unix(s, 0) }
	p.begin("a", at(1))
	p.begin("a", at(5)) // the first one failed
	p.end("a", at(7))
	p.end("b", at(9)) // it was there
	if got := p.take(); len(got) != 1 || got[0] != (span{at(1), at(7)}) {
		t.Errorf("%v", got)
	}
	for i := range 2 * maxPullTimes {
		p.begin(strconv.Itoa(i), at(1))
		p.begin("a", at(1))
		p.end("a", at(2))
	}
	if len(p.began) > maxPullTimes || len(p.take()) > maxPullTimes {
		t.Errorf("%d that began are remembered", len(p.began))
	}
}

// TestStartSLI: the start of a pod is counted without what it does not answer for, and not
// at all if its volumes are others' work.
func TestStartSLI(t *testing.T) {
	m := newStartMetrics(prometheus.NewRegistry())
	began := time.Unix(100, 0)
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := podtest.Pod("p", "c")
		p.CreationTimestamp = metav1.NewTime(began)
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		change(p)
		return p
	}
	m.started(pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), began.Add(5*time.Second), nil)
	m.started(pod(func(p *corev1.Pod) {}), began.Add(10*time.Second), []span{{began, began.Add(7 * time.Second)}})
	m.started(pod(func(p *corev1.Pod) {
		p.Spec.Volumes[0].EmptyDir, p.Spec.Volumes[0].HostPath = nil, &corev1.HostPathVolumeSource{}
	}), began.Add(time.Minute), nil)
	m.started(pod(func(p *corev1.Pod) {}), began.Add(-time.Second), nil) // clocks differ
	var total, sli, first dto.Metric
	_, _, _ = m.total.Write(&total), m.sli.Write(&sli), m.firstNetwork.Write(&first)
	if h := total.GetHistogram(); h.GetSampleCount() != 4 || h.GetSampleSum() != 75 {
		t.Errorf("in all %v", h)
	}
	if h := sli.GetHistogram(); h.GetSampleCount() != 3 || h.GetSampleSum() != 8 {
		t.Errorf("SLI %v", h)
	}
	if got := first.GetGauge().GetValue(); got != 3 {
		t.Errorf("the first with a network took %v", got)
	}
}

// TestStartIsWatched: a pod is observed once the API shows that it runs, and one that
// this kubelet finds running is not.
func TestStartIsWatched(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	pod := podtest.Pod("web", "c")
	pod.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	pod.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
	n.api.addPod(pod)
	n.until("ready", n.ready("web"))
	shown := func(name string) float64 { return total(asked(t, n.k, "/metrics")[name], "") }
	n.until("observed", func() bool { return shown("kubelet_pod_start_sli_duration_seconds") == 1 })
	if all, pulls, first := shown("kubelet_pod_start_total_duration_seconds"), shown("kubelet_image_pull_duration_seconds"), shown("kubelet_first_network_pod_start_sli_duration_seconds"); all != 1 || pulls != 1 || first < 3600 {
		t.Errorf("%v pods in all, %v pulls, the first with a network took %v", all, pulls, first)
	}
	stop()
	n.start()
	n.api.addPod(podtest.Pod("other", "d"))
	n.until("another pod", n.ready("other"))
	if got := shown("kubelet_pod_start_total_duration_seconds"); got != 0 {
		t.Errorf("after a restart %v pods are observed", got)
	}
}
