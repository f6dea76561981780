package kubelet

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/volume"
)

// A claim is shown once, however many pods have it; a pod that is gone shows
// nothing.
func TestVolumeStatistics(t *testing.T) {
	settings := &configuration.Settings{}
	settings.VolumeStatsAggPeriod.Duration = -1
	k := &Kubelet{cfg: Config{Settings: settings}, ctx: t.Context(), workers: map[types.UID]*worker{}}
	for _, uid := range []types.UID{"a", "b"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p-" + string(uid), UID: uid}}
		pod.Spec.Volumes = []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
			{Name: "own", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			{Name: "later", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "d"}}},
		}
		w := &worker{k: k, uid: uid}
		local := volume.Mounted{Path: t.TempDir(), Kind: "kubernetes.io~local-volume"}
		w.shown.Store(&shown{pod: pod, volumes: map[string]volume.Mounted{"v": local, "own": local}})
		k.workers[uid] = w
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(volumeCollector{k})
	claims := func() (got string) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, f := range families {
			if f.GetName() != "kubelet_volume_stats_capacity_bytes" {
				continue
			}
			for _, m := range f.Metric {
				if m.GetGauge().GetValue() <= 0 {
					t.Errorf("capacity of %s: %v", m, m.GetGauge().GetValue())
				}
				all = append(all, m.Label[0].GetValue()+"/"+m.Label[1].GetValue())
			}
		}
		return strings.Join(all, " ")
	}
	if got := claims(); got != "" {
		t.Errorf("with a negative volumeStatsAggPeriod: %s", got)
	}
	settings.VolumeStatsAggPeriod.Duration = time.Hour
	if got, want := claims(), "ns/c ns/p-a-own ns/p-b-own"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	k.storage.mounted["b"].all[0].PVCRef.Name = "kept" // which a measurement would write over
	if got, want := claims(), "ns/c ns/p-a-own ns/kept ns/p-b-own"; !sameWords(got, want) {
		t.Errorf("within volumeStatsAggPeriod: %s, want %s", got, want)
	}
	settings.VolumeStatsAggPeriod.Duration = time.Nanosecond
	if got, want := claims(), "ns/c ns/p-a-own ns/p-b-own"; got != want {
		t.Errorf("after volumeStatsAggPeriod: %s, want %s", got, want)
	}
	if s := k.mountedStats("a"); len(s) != 2 || s[0].Name != "v" || s[0].PVCRef.Name != "c" || *s[0].CapacityBytes < *s[0].UsedBytes {
		t.Errorf("%+v", s)
	}
	delete(k.workers, "a")
	if got, want := claims(), "ns/c ns/p-b-own"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if k.storage.mounted["a"].all != nil {
		t.Error("a pod that is gone is remembered")
	}
}

func sameWords(a, b string) bool {
	x, y := strings.Fields(a), strings.Fields(b)
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}
