package kubelet

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/csi"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/volume"
)

// TestVolumeMetrics: operations, calls and what was found are counted under upstream's names.
func TestVolumeMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	m := newVolumeMetrics(r)
	for _, madeUp := range []string{"x", "y", "z"} {
		m.did(volume.Operation{Name: volume.OpMap, Plugin: volume.DriverPlugin(madeUp), Err: errors.New("no such driver")})
	}
	m.called(csi.Call{Driver: "d", Method: "/csi.v1.Node/NodeGetCapabilities"})
	m.did(volume.Operation{Name: volume.OpMount, Plugin: volume.DriverPlugin("d"), Took: time.Second, Migrated: true})
	m.did(volume.Operation{Name: volume.OpUnmount, Plugin: "kubernetes.io/secret", Err: errors.New("no")})
	m.did(volume.Operation{Name: volume.OpWhole, Plugin: "kubernetes.io/secret", Took: time.Minute})
	m.called(csi.Call{Driver: "d", Method: "/csi.v1.Node/NodeStageVolume", Err: status.Error(codes.Aborted, "")})
	m.called(csi.Call{Driver: "d", Method: "/csi.v1.Node/NodePublishVolume"})
	m.called(csi.Call{Driver: "d", Method: "/csi.v1.Node/NodeGetInfo", Err: errors.New("not sent")})
	m.counted(3, 1)
	m.cleaned(nil)
	m.cleaned(errors.New("no"))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*dto.MetricFamily{}
	for _, f := range families {
		all[f.GetName()] = f
	}
	for _, c := range []struct {
		name, label string
		want        float64
	}{
		{"storage_operation_duration_seconds", "", 5}, {"storage_operation_duration_seconds", "kubernetes.io/csi", 3}, {"storage_operation_duration_seconds", "kubernetes.io/csi:d", 1},
		{"storage_operation_duration_seconds", "true", 1}, {"storage_operation_duration_seconds", "fail-unknown", 4},
		{"volume_operation_total_seconds", "overall_volume_mount", 1},
		{"csi_operations_seconds", "Aborted", 1}, {"csi_operations_seconds", "OK", 2}, {"csi_operations_seconds", "unknown-non-grpc", 1},
		{"reconstruct_volume_operations_total", "", 3}, {"reconstruct_volume_operations_errors_total", "", 1},
		{"force_cleaned_failed_volume_operations_total", "", 2}, {"force_cleaned_failed_volume_operation_errors_total", "", 1},
	} {
		if got := total(all[c.name], c.label); got != c.want {
			t.Errorf("%s %s: %v, want %v", c.name, c.label, got, c.want)
		}
	}
	upstreamNames(t, all)
}

// TestVolumesOfAPodAreCounted: from when they are mounted until they are taken away.
func TestVolumesOfAPodAreCounted(t *testing.T) {
	n := newNode(t)
	n.start()
	pod := podtest.Pod("web", "a")
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	n.api.addPod(podtest.Use(pod))
	n.until("ready", n.ready("web"))
	if err := n.k.volumes.Unmount(t.Context(), string(pod.UID)); err != nil {
		t.Fatal(err)
	}
	all := asked(t, n.k, "/metrics")
	for _, c := range []struct {
		name, label string
		want        float64
	}{
		{"storage_operation_duration_seconds", "volume_unmount", 1}, {"volume_operation_total_seconds", "kubernetes.io/empty-dir", 1},
	} {
		if got := total(all[c.name], c.label); got != c.want {
			t.Errorf("%s %s: %v, want %v", c.name, c.label, got, c.want)
		}
	}
}
