package kubelet

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// imageMetrics are of what is pulled, and of images as volumes.
type imageMetrics struct {
	pullTook *prometheus.HistogramVec // by size
	asked    *prometheus.CounterVec   // for an image to be there
	checked  *prometheus.CounterVec   // whether a pod may use one, by how that ended

	volumes, volumesMounted, volumesFailed prometheus.Counter
}

func newImageMetrics(r prometheus.Registerer) imageMetrics {
	m := imageMetrics{
		pullTook: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kubelet_image_pull_duration_seconds", Help: "[ALPHA] How long pulls of images took, waiting included, by the size of the image",
			Buckets: []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}}, []string{"image_size_in_bytes"}),
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_image_manager_ensure_image_requests_total", Help: "[ALPHA] How often an image had to be there, whether it was, and whether it had to be pulled"},
			[]string{"pull_policy", "present_locally", "pull_required"}),
		checked:        prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_imagemanager_image_mustpull_checks_total", Help: "[ALPHA] How often it was looked up whether a pod may use an image that is there, by how that ended"}, []string{"result"}),
		volumes:        prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_image_volume_requested_total", Help: "[BETA] Images that containers were to have as volumes"}),
		volumesMounted: prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_image_volume_mounted_succeed_total", Help: "[BETA] Mounts of images that the runtime made"}),
		volumesFailed:  prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_image_volume_mounted_errors_total", Help: "[BETA] Mounts of images that the runtime could not make"}),
	}
	r.MustRegister(m.pullTook, m.asked, m.checked, m.volumes, m.volumesMounted, m.volumesFailed)
	return m
}

// imageSizes are the names of sizes of images, each of those above it, MiB.
var imageSizes = []struct {
	above uint64
	name  string
}{
	{100 << 10, "GT100GB"}, {60 << 10, "60GB-100GB"}, {40 << 10, "40GB-60GB"}, {30 << 10, "30GB-40GB"}, {20 << 10, "20GB-30GB"}, {10 << 10, "10GB-20GB"},
	{5 << 10, "5GB-10GB"}, {1 << 10, "1GB-5GB"}, {500, "500MB-1GB"}, {100, "100MB-500MB"}, {10, "10MB-100MB"}, {0, "0-10MB"},
}

// pulled observes how long a pull took.
func (m imageMetrics) pulled(size uint64, took time.Duration) {
	of := "N/A"
	for _, s := range imageSizes {
		if size > s.above<<20 {
			of = s.name
			break
		}
	}
	m.pullTook.WithLabelValues(of).Observe(took.Seconds())
}

// An imageRequest is what is known of an image that has to be there; nil: nothing.
type imageRequest struct{ present, pull *bool }

func (m imageMetrics) count(policy corev1.PullPolicy, r *imageRequest) {
	switch policy {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		policy = "unknown"
	}
	name := func(b *bool) string {
		if b == nil {
			return "unknown"
		}
		return strconv.FormatBool(*b)
	}
	m.asked.WithLabelValues(strings.ToLower(string(policy)), name(r.present), name(r.pull)).Inc()
}

// mounted counts the images that a container was to have as volumes, once the runtime has
// answered.
func (m imageMetrics) mounted(c *corev1.Container, images map[string]string, err error) {
	m.volumes.Add(float64(len(images)))
	for _, v := range c.VolumeMounts {
		switch {
		case images[v.Name] == "":
		case err == nil:
			m.volumesMounted.Inc()
		case strings.HasPrefix(status.Convert(err).Message(), crierrors.ErrImageVolumeMountFailed.Error()):
			m.volumesFailed.Inc()
		}
	}
}
