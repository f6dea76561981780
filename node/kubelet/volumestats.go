package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"knarr/internal/run"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/volume"
)

const (
	// volumeTime bounds what the volumes of one pod take to be measured.
	volumeTime = 5 * time.Second
	// volumeWorkers is how many pods' volumes are measured at once.
	volumeWorkers = 8
)

// measuredVolumes are the statistics of one pod's volumes that are no directories
// of the node's own disk.
type measuredVolumes struct {
	at  time.Time
	all []stats.VolumeStats
}

// claimOf is the claim behind a volume of a pod, nil if there is none.
func claimOf(pod *corev1.Pod, v *corev1.Volume) *stats.PVCReference {
	switch {
	case v.PersistentVolumeClaim != nil:
		return &stats.PVCReference{Name: v.PersistentVolumeClaim.ClaimName, Namespace: pod.Namespace}
	case v.Ephemeral != nil:
		return &stats.PVCReference{Name: ephemeral.VolumeClaimName(pod, v), Namespace: pod.Namespace}
	}
	return nil
}

// measureVolumes measures volumes that were not for a while. A driver or a file
// system that does not answer holds up its pod's statistics alone.
func (k *Kubelet) measureVolumes(ctx context.Context) {
	m, now := &k.storage, time.Now()
	live := map[types.UID]bool{}
	period := k.cfg.Settings.VolumeStatsAggPeriod.Duration // how old statistics may be that are shown
	if period < 0 {
		return // nobody wants any
	}
	var due []*shown
	m.mu.Lock()
	for _, w := range k.all() {
		s := w.shown.Load()
		live[w.uid] = true
		if len(s.volumes) > 0 && now.Sub(m.mounted[w.uid].at) >= period {
			due = append(due, s)
		}
	}
	maps.DeleteFunc(m.mounted, func(uid types.UID, _ measuredVolumes) bool { return !live[uid] })
	m.mu.Unlock()
	run.Each("kubelet: volume statistics", volumeWorkers, len(due), func(i int) error {
		s := due[i]
		err := k.calls.Do(ctx, "volumes of "+string(s.pod.UID), volumeTime, func() error {
			all, err := k.volumeUsage(s)
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.mounted == nil {
				m.mounted = map[types.UID]measuredVolumes{}
			}
			m.mounted[s.pod.UID] = measuredVolumes{time.Now(), all}
			return err
		})
		if err != nil && ctx.Err() == nil {
			slog.Debug("measure the volumes of a pod", "pod", podspec.Format(s.pod), "err", err)
		}
		return nil
	})
}

// volumeUsage asks drivers and file systems how full a pod's volumes are.
func (k *Kubelet) volumeUsage(s *shown) (all []stats.VolumeStats, err error) {
	ctx, cancel := context.WithTimeout(k.ctx, volumeTime)
	defer cancel()
	var errs []error
	for i := range s.pod.Spec.Volumes {
		v := &s.pod.Spec.Volumes[i]
		got, ok := s.volumes[v.Name]
		if !ok {
			continue
		}
		u, err := k.usageOf(ctx, got)
		if err != nil {
			errs = append(errs, err)
		}
		if u == nil {
			continue
		}
		all = append(all, stats.VolumeStats{Name: v.Name, PVCRef: claimOf(s.pod, v), FsStats: stats.FsStats{
			Time: metav1.Now(), CapacityBytes: &u.Capacity, UsedBytes: &u.Used, AvailableBytes: &u.Available,
			Inodes: &u.Inodes, InodesUsed: &u.InodesUsed, InodesFree: &u.InodesFree,
		}})
	}
	return all, errors.Join(errs...)
}

// usageOf is how full a volume is; nil of one whose files are counted instead.
func (k *Kubelet) usageOf(ctx context.Context, v volume.Mounted) (*volume.Usage, error) {
	switch v.Kind {
	case "kubernetes.io~csi":
		return k.drivers.Usage(ctx, v.Path)
	case "kubernetes.io~nfs", "kubernetes.io~iscsi", "kubernetes.io~local-volume":
		if v.Device != "" {
			return nil, nil
		}
		d, err := k.statDisk(v.Path)
		if err != nil {
			return nil, err
		}
		return &volume.Usage{Capacity: d.size, Used: d.size - d.free, Available: d.free, Inodes: d.inodes, InodesUsed: d.inodes - d.inodesFree, InodesFree: d.inodesFree}, nil
	}
	return nil, nil
}

// mountedStats are the last statistics of a pod's mounted volumes.
func (k *Kubelet) mountedStats(uid types.UID) []stats.VolumeStats {
	m := &k.storage
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.mounted[uid].all)
}

var ofClaim = []string{"namespace", "persistentvolumeclaim"}

// volumeGauges are upstream's metrics of claims.
var volumeGauges = []struct {
	desc  *prometheus.Desc
	value func(*stats.FsStats) *uint64
}{
	{prometheus.NewDesc("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume", ofClaim, nil), func(s *stats.FsStats) *uint64 { return s.CapacityBytes }},
	{prometheus.NewDesc("kubelet_volume_stats_available_bytes", "[ALPHA] Number of available bytes in the volume", ofClaim, nil), func(s *stats.FsStats) *uint64 { return s.AvailableBytes }},
	{prometheus.NewDesc("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume", ofClaim, nil), func(s *stats.FsStats) *uint64 { return s.UsedBytes }},
	{prometheus.NewDesc("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume", ofClaim, nil), func(s *stats.FsStats) *uint64 { return s.Inodes }},
	{prometheus.NewDesc("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume", ofClaim, nil), func(s *stats.FsStats) *uint64 { return s.InodesFree }},
	{prometheus.NewDesc("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume", ofClaim, nil), func(s *stats.FsStats) *uint64 { return s.InodesUsed }},
}

// A volumeCollector shows how full claims are, each once however many pods have
// it.
type volumeCollector struct{ k *Kubelet }

func (c volumeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range volumeGauges {
		ch <- g.desc
	}
}

func (c volumeCollector) Collect(ch chan<- prometheus.Metric) {
	defer run.Recover("kubelet: metrics of volumes")
	ctx, cancel := context.WithTimeout(context.Background(), resourceTime)
	defer cancel()
	c.k.measureVolumes(ctx)
	seen := map[stats.PVCReference]bool{}
	for _, w := range c.k.all() {
		for _, v := range c.k.mountedStats(w.uid) {
			if v.PVCRef == nil || seen[*v.PVCRef] {
				continue
			}
			seen[*v.PVCRef] = true
			for _, g := range volumeGauges {
				ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(*g.value(&v.FsStats)), v.PVCRef.Namespace, v.PVCRef.Name)
			}
		}
	}
}
