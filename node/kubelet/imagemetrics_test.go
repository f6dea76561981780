package kubelet

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
)

// TestPullSizes: pulls are counted by upstream's names of sizes.
func TestPullSizes(t *testing.T) {
	r := prometheus.NewRegistry()
	m := newImageMetrics(r)
	for _, size := range []uint64{0, 1, 10 << 20, 10<<20 + 1, 1 << 30, 1<<30 + 1, 1 << 50} {
		m.pulled(size, time.Second)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*dto.MetricFamily{}
	for _, f := range families {
		all[f.GetName()] = f
	}
	for name, want := range map[string]float64{"N/A": 1, "0-10MB": 2, "10MB-100MB": 1, "500MB-1GB": 1, "1GB-5GB": 1, "GT100GB": 1} {
		if got := total(all["kubelet_image_pull_duration_seconds"], name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestImageVolumeMetrics: an error that is not about the image says nothing of its mount.
func TestImageVolumeMetrics(t *testing.T) {
	m := newImageMetrics(prometheus.NewRegistry())
	c := &podtest.Pod("p", "c").Spec.Containers[0]
	c.VolumeMounts = []corev1.VolumeMount{{Name: "image", MountPath: "/a"}, {Name: "image", MountPath: "/b"}, {Name: "other", MountPath: "/c"}}
	images := map[string]string{"image": "id"}
	for _, err := range []error{nil, errors.New("ImageVolumeMountFailed: no such path"), errors.New("no room")} {
		m.mounted(c, images, err)
	}
	for i, c := range []struct {
		prometheus.Counter
		want float64
	}{{m.volumes, 3}, {m.volumesMounted, 2}, {m.volumesFailed, 2}} {
		var d dto.Metric
		if err := c.Write(&d); err != nil || d.GetCounter().GetValue() != c.want {
			t.Errorf("%d: %v, %v", i, d.GetCounter().GetValue(), err)
		}
	}
}
