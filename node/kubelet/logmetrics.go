package kubelet

import (
	"context"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"knarr/internal/run"
	"knarr/node/kubelet/podfile"
	"knarr/node/kubelet/podspec"
)

// A logCollector shows how much the logs of containers take on disk.
type logCollector struct{ k *Kubelet }

var logSizeDesc = ofNow("kubelet_container_log_filesystem_used_bytes", "Bytes that the logs of a container take on disk", "uid", "namespace", "pod", "container")

func (c logCollector) Describe(ch chan<- *prometheus.Desc) { ch <- logSizeDesc }

// Collect measures logs unless all files of pods were measured just now.
func (c logCollector) Collect(ch chan<- prometheus.Metric) {
	defer run.Recover("kubelet: metrics of logs")
	ctx, cancel := context.WithTimeout(context.Background(), resourceTime)
	defer cancel()
	c.k.storage.mu.Lock()
	known := time.Since(c.k.storage.at) <= measurePeriod
	c.k.storage.mu.Unlock()
	for _, w := range c.k.all() {
		s := w.shown.Load()
		logs := map[string]podfile.Usage{}
		if known {
			logs = c.k.storageOf(w.uid).logs
		} else if dir := c.k.podLogDir(s.pod); c.k.calls.Do(ctx, dir, measureTime, func() error { return measureLogs(ctx, s.pod, dir, logs) }) != nil {
			continue
		}
		for name, u := range logs {
			if s.observed == nil || s.observed.Latest(name) == nil {
				continue // which has not begun
			}
			ch <- prometheus.MustNewConstMetric(logSizeDesc, prometheus.GaugeValue, float64(u.Bytes), string(w.uid), s.pod.Namespace, s.pod.Name, name)
		}
	}
}

// measureLogs measures the logs of each container of a pod.
func measureLogs(ctx context.Context, pod *corev1.Pod, dir string, into map[string]podfile.Usage) (err error) {
	podspec.EachContainer(pod, func(c *corev1.Container, _ podspec.ContainerKind) {
		if err != nil {
			return
		}
		var u podfile.Usage
		if u, err = podfile.Measure(ctx, filepath.Join(dir, c.Name)); err == nil {
			into[c.Name] = u
		}
	})
	return err
}
