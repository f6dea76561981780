package kubelet

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// startMetrics are of how long pods take from their creation until a watch shows that they
// run.
type startMetrics struct {
	total, sli   prometheus.Histogram
	firstNetwork prometheus.Gauge
	network      atomic.Bool // firstNetwork is set
}

func newStartMetrics(r prometheus.Registerer) *startMetrics {
	m := &startMetrics{
		total: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubelet_pod_start_total_duration_seconds", Buckets: startBuckets,
			Help: "[ALPHA] How long pods took from their creation until a watch showed that all of their containers run"}),
		sli: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubelet_pod_start_sli_duration_seconds", Buckets: startBuckets,
			Help: "[ALPHA] The same without pulls of images and init containers, of pods whose volumes are of objects of the API or empty"}),
		firstNetwork: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_first_network_pod_start_sli_duration_seconds",
			Help: "[ALPHA] That of the first pod with a network of its own since the kubelet started"}),
	}
	r.MustRegister(m.total, m.sli, m.firstNetwork)
	return m
}

// started observes a pod that runs, of whose start these spans do not count.
func (m *startMetrics) started(pod *corev1.Pod, at time.Time, apart []span) {
	took := max(at.Sub(pod.CreationTimestamp.Time), 0)
	m.total.Observe(took.Seconds())
	if stateful(pod) {
		return
	}
	sli := max(took-union(apart), 0).Seconds()
	m.sli.Observe(sli)
	if !pod.Spec.HostNetwork && m.network.CompareAndSwap(false, true) {
		m.firstNetwork.Set(sli)
	}
}

// stateful says whether a pod has volumes whose mounting is not the kubelet's alone.
func stateful(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Secret == nil && v.ConfigMap == nil && v.DownwardAPI == nil && v.EmptyDir == nil && v.Projected == nil
	})
}

// A span is a time from and until.
type span struct{ from, until time.Time }

// union is how long at least one of the spans lasts. Pure.
func union(all []span) (sum time.Duration) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b span) int { return a.from.Compare(b.from) })
	var end time.Time
	for _, s := range all {
		if s.from.Before(end) {
			s.from = end
		}
		if s.until.After(s.from) {
			sum += s.until.Sub(s.from)
			end = s.until
		}
	}
	return sum
}

// maxPullTimes bounds what is remembered of a pod whose containers never run all at once.
const maxPullTimes = 256

// pullTimes are when a pod's images were pulled, until it has started: from the first try
// of each to its end.
type pullTimes struct {
	mu    sync.Mutex
	began map[string]time.Time // by image
	ended []span
}

func (p *pullTimes) begin(image string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, again := p.began[image]; again || len(p.began) == maxPullTimes {
		return
	}
	if p.began == nil {
		p.began = map[string]time.Time{}
	}
	p.began[image] = at
}

func (p *pullTimes) end(image string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from, ok := p.began[image]
	delete(p.began, image)
	if ok && len(p.ended) < maxPullTimes {
		p.ended = append(p.ended, span{from, at})
	}
}

// take is what there is, which is no longer needed.
func (p *pullTimes) take() []span {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.ended
	p.ended = nil
	return all
}

// pullTimes are those of a pod that has not started yet; of another one, nobody's.
func (k *Kubelet) pullTimes(pod types.UID) *pullTimes {
	if w := k.worker(pod); w != nil && !w.seen.Load() {
		return &w.pulls
	}
	return &pullTimes{}
}

// watched observes how long a pod took to start, once, when the API shows that it runs;
// if it began before this kubelet or could not be bound at first, nobody knows.
func (w *worker) watched(pod *corev1.Pod) {
	if w.seen.Load() {
		return
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			w.seen.Store(true)
			return
		}
	}
	if pod.CreationTimestamp.IsZero() || len(pod.Status.ContainerStatuses) == 0 {
		return
	}
	for i := range pod.Status.ContainerStatuses {
		if r := pod.Status.ContainerStatuses[i].State.Running; r == nil || r.StartedAt.IsZero() {
			return
		}
	}
	w.seen.Store(true)
	w.k.metrics.starts.started(pod, time.Now(), append(w.pulls.take(), initSpans(pod, w.observed)...))
}

// initSpans are when init containers ran that had to end before the pod's others.
func initSpans(pod *corev1.Pod, v *runtimestate.Pod) (out []span) {
	if v == nil {
		return nil
	}
	for _, c := range v.Containers {
		if spec, kind := podspec.FindContainer(pod, c.Name()); kind == podspec.InitContainer && !podspec.IsSidecar(spec) && c.Exited() {
			out = append(out, span{c.Started(), c.Finished()})
		}
	}
	return out
}
