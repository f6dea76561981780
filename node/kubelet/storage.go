package kubelet

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/features"
	"knarr/internal/run"
	"knarr/node/kubelet/crilabels"
	"knarr/node/kubelet/podfile"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/volume"
)

// podStorage is what a pod takes of the node's disks: what its containers
// wrote to their own file systems, as the runtime's snapshotter counts it,
// their logs, and the volumes that are directories of the node. What is
// mounted, tmpfs or the disk of a claim, is not among it.
type podStorage struct {
	layers  map[string]podfile.Usage // by container
	logs    map[string]podfile.Usage // by container
	volumes map[string]podfile.Usage // by volume
	files   podfile.Usage            // hosts file and termination messages
	memory  map[string]uint64        // working set by container
}

func sum(m map[string]podfile.Usage) (u podfile.Usage) {
	for _, o := range m {
		u.Add(o)
	}
	return u
}

// total is what is among the node's files, or among what containers wrote to their own:
// all of it where both are on one disk.
func (s podStorage) total(files, layers bool) (u podfile.Usage) {
	if files {
		u.Add(sum(s.logs))
		u.Add(sum(s.volumes))
		u.Add(s.files)
	}
	if layers {
		u.Add(sum(s.layers))
	}
	return u
}

// storageMeter keeps what was measured last. A measurement that takes long
// goes on in the background, once per pod, while what was known before it counts.
type storageMeter struct {
	// each and all take the place of measureTime and measureBudget in tests.
	each, all time.Duration

	mu    sync.Mutex
	at    time.Time
	files map[types.UID]storageRecord
	walks map[types.UID]walk
	stats map[types.UID][]*cri.ContainerStats
	asked time.Time // for stats
	// mounted are volumes that are file systems of their own.
	mounted map[types.UID]measuredVolumes
}

// A walk is how a pod's files were measured last.
type walk struct {
	began    time.Time
	underway bool
	took     time.Duration // the last one that has ended
	next     time.Time     // when the next one is to begin, if took was long
}

// slow says whether nobody waits for such a walk again.
func (w walk) slow() bool { return w.took > slowWalk }

const (
	// measureTime is how long one pod's files may take to be measured before
	// the others go on.
	measureTime = 5 * time.Second
	// measureBudget is how long those of all pods may: pods decide how many files they
	// have, and whoever measures has other things to do.
	measureBudget = 10 * time.Second
	// measureWorkers is how many pods' files are waited for at once.
	measureWorkers = 4
	// slowWalk is how long a measurement takes that is not waited for again, but goes on in
	// the background: maxSlowWalks at once, and no sooner than after as long a time, or
	// maxWalkRest.
	slowWalk     = time.Second
	maxSlowWalks = 4
	maxWalkRest  = time.Minute
	// maxWalk bounds a measurement in the background: a pod that moves directories ahead of
	// it makes it as long as it likes.
	maxWalk = time.Hour
	// measurePeriod is how old a measurement may be that is shown.
	measurePeriod = 15 * time.Second
	// statsTime bounds the runtime's part of a measurement.
	statsTime = 10 * time.Second
)

// fresh is what the runtime has said of all containers within a second; nil for nothing.
func (m *storageMeter) fresh() map[types.UID][]*cri.ContainerStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.asked) > measurementLife {
		return nil
	}
	return m.stats
}

// measure brings the meter up to date for all pods.
func (k *Kubelet) measure(ctx context.Context) {
	k.measureLayers(ctx)
	var both run.Group
	both.Go("kubelet: files of pods", func() { k.measurePods(ctx, k.all(), false) })
	both.Go("kubelet: volumes of pods", func() {
		ctx, cancel := context.WithTimeout(ctx, cmp.Or(k.storage.all, measureBudget))
		defer cancel()
		k.measureVolumes(ctx)
	})
	both.Wait()
	k.storage.mu.Lock()
	defer k.storage.mu.Unlock()
	k.storage.at = time.Now()
}

// measureLayers asks the runtime. Without an answer the last one counts.
func (k *Kubelet) measureLayers(ctx context.Context) {
	asked, cancel := context.WithTimeout(ctx, statsTime)
	defer cancel()
	res, err := k.runtime.ListContainerStats(asked, &cri.ListContainerStatsRequest{})
	if err != nil {
		if ctx.Err() == nil && k.news.IsNew("measure containers", err.Error()) {
			slog.Warn("ask the runtime what containers use", "err", err)
		}
		return
	}
	stats := map[types.UID][]*cri.ContainerStats{}
	for _, s := range res.Stats {
		uid := types.UID(s.Attributes.GetLabels()[crilabels.PodUID])
		stats[uid] = append(stats[uid], s)
	}
	k.storage.mu.Lock()
	defer k.storage.mu.Unlock()
	k.storage.stats, k.storage.asked = stats, time.Now()
}

// measurePods measures the files of pods, those first that were not for the longest time,
// for measureBudget at most; all is whether those that take long are waited for too. Those of
// pods that are gone are forgotten.
func (k *Kubelet) measurePods(ctx context.Context, workers []*worker, all bool) {
	m := &k.storage
	live := map[types.UID]bool{}
	for _, w := range k.all() {
		live[w.uid] = true
	}
	due := m.due(workers, live, all, time.Now())
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(m.all, measureBudget))
	defer cancel()
	run.Each("kubelet: files of pods", measureWorkers, len(due), func(i int) error {
		k.measurePod(ctx, due[i].shown.Load().pod, all)
		return nil
	})
}

func (k *Kubelet) measurePod(ctx context.Context, pod *corev1.Pod, all bool) {
	m := &k.storage
	dir, logs := k.volumes.PodDir(string(pod.UID)), k.podLogDir(pod)
	most := cmp.Or(m.each, measureTime)
	if !all && m.slow(pod.UID) {
		most = time.Nanosecond
	}
	err := k.calls.Do(ctx, dir, most, func() error {
		began := m.begin(pod.UID)
		ctx, cancel := context.WithTimeout(k.ctx, maxWalk)
		defer cancel()
		s, err := measureFiles(ctx, pod, dir, logs, k.counted, func(s podStorage) { m.show(pod.UID, s) })
		k.warnHidden(pod, m.end(pod.UID, s, err, began))
		return err
	})
	if err != nil && ctx.Err() == nil {
		slog.Debug("measure what a pod has on disk", "pod", podspec.Format(pod), "err", err)
	}
}

// warnHidden logs that a pod hides files, if it does.
func (k *Kubelet) warnHidden(pod *corev1.Pod, r storageRecord) {
	if r.hides() && k.news.IsNew("hidden files of "+string(pod.UID), "") {
		slog.Warn("a pod moves its directories while they are measured: it has more on disk than is counted, and is evicted first if the disk runs out",
			"pod", podspec.Format(pod), "counted", r.known().total(true, false).Bytes, "measurements", r.moved)
	}
}

// due are the pods to be measured, in order. Those that are not live are forgotten.
func (m *storageMeter) due(workers []*worker, live map[types.UID]bool, all bool, now time.Time) (due []*worker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.files, func(uid types.UID, _ storageRecord) bool { return !live[uid] })
	maps.DeleteFunc(m.walks, func(uid types.UID, _ walk) bool { return !live[uid] })
	slow := 0
	for _, w := range m.walks {
		if w.underway && w.slow() {
			slow++
		}
	}
	workers = slices.Clone(workers)
	slices.SortStableFunc(workers, func(a, b *worker) int { return m.walks[a.uid].began.Compare(m.walks[b.uid].began) })
	for _, w := range workers {
		if last := m.walks[w.uid]; last.slow() && !all {
			if last.underway || slow >= maxSlowWalks || now.Before(last.next) {
				continue
			}
			slow++
		}
		due = append(due, w)
	}
	return due
}

// slow says whether a pod's files took long to measure.
func (m *storageMeter) slow(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.walks[uid].slow()
}

func (m *storageMeter) begin(uid types.UID) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.walks == nil {
		m.walks = map[types.UID]walk{}
	}
	w := m.walks[uid]
	w.began, w.underway = time.Now(), true
	m.walks[uid] = w
	return w.began
}

// show keeps what a measurement has counted so far.
func (m *storageMeter) show(uid types.UID, s podStorage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(uid, m.files[uid].shown(s))
}

// end keeps what a measurement has counted, and gives what is known then. err is why it did
// not count all.
func (m *storageMeter) end(uid types.UID, s podStorage, err error, began time.Time) storageRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.files[uid].ended(s, err)
	m.set(uid, r)
	w := walk{began: began, took: time.Since(began)}
	w.next = time.Now().Add(min(w.took, maxWalkRest))
	m.walks[uid] = w
	return r
}

func (m *storageMeter) set(uid types.UID, r storageRecord) {
	if m.files == nil {
		m.files = map[types.UID]storageRecord{}
	}
	m.files[uid] = r
}

// hides says whether a pod moves its directories so that they are not counted.
func (m *storageMeter) hides(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.files[uid].hides()
}

// storageOf is what was last known of a pod.
func (k *Kubelet) storageOf(uid types.UID) podStorage {
	m := &k.storage
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.files[uid].known()
	s.layers, s.memory = map[string]podfile.Usage{}, map[string]uint64{}
	for _, c := range m.stats[uid] {
		name := c.Attributes.GetMetadata().GetName()
		l := s.layers[name] // containers that ended still have their layers
		l.Add(podfile.Usage{Bytes: c.WritableLayer.GetUsedBytes().GetValue(), Inodes: c.WritableLayer.GetInodesUsed().GetValue()})
		s.layers[name] = l
		s.memory[name] += c.Memory.GetWorkingSetBytes().GetValue()
	}
	return s
}

// newProjects are what emptyDirs of pods with users of their own are measured by, nil if the
// feature is off or the file system has no project quotas.
func (k *Kubelet) newProjects() volume.Projects {
	if !features.Set(k.cfg.Settings.FeatureGates).Enabled("LocalStorageCapacityIsolationFSQuotaMonitoring") {
		return nil
	}
	p, err := volume.NewProjects(filepath.Join(k.cfg.RootDir, "pods"))
	if err != nil {
		slog.Info("LocalStorageCapacityIsolationFSQuotaMonitoring is on, and volumes are measured file by file all the same", "err", err)
		return nil
	}
	return p
}

// counted is what an emptyDir takes up as its file system has counted it, false where files
// are to be counted one by one.
func (k *Kubelet) counted(pod *corev1.Pod, path string) (podfile.Usage, bool) {
	u, err := k.volumes.Usage(pod, path)
	switch {
	case err == nil, errors.Is(err, volume.ErrNoProject), errors.Is(err, fs.ErrNotExist):
	case k.news.IsNew("projects of emptyDirs", err.Error()):
		slog.Warn("a volume is measured file by file", "pod", podspec.Format(pod), "err", err)
	}
	return u, err == nil
}

// measureFiles measures the files of a pod that are the node's, and shows what it has
// counted so far. With an error of one of them it is less than there is.
func measureFiles(ctx context.Context, pod *corev1.Pod, dir, logs string, counted func(*corev1.Pod, string) (podfile.Usage, bool), show func(podStorage)) (s podStorage, err error) {
	var errs []error
	of := func(path string, is func(podfile.Usage)) {
		var u podfile.Usage
		on, err := podfile.IsMount(path)
		if err == nil && !on {
			u, err = podfile.Count(ctx, path, func(u podfile.Usage) { is(u); show(s.clone()) })
		}
		is(u)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	s.volumes, s.logs = map[string]podfile.Usage{}, map[string]podfile.Usage{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		kind := localKind(v)
		if kind == "" {
			continue
		}
		path, is := filepath.Join(dir, "volumes", kind, v.Name), func(u podfile.Usage) { s.volumes[v.Name] = u }
		if v.EmptyDir != nil {
			if u, ok := counted(pod, path); ok {
				is(u)
				continue
			}
		}
		of(path, is)
	}
	of(filepath.Join(dir, "etc-hosts"), func(u podfile.Usage) { s.files = u })
	hosts := s.files
	of(filepath.Join(dir, "containers"), func(u podfile.Usage) { u.Add(hosts); s.files = u })
	podspec.EachContainer(pod, func(c *corev1.Container, _ podspec.ContainerKind) {
		of(filepath.Join(logs, c.Name), func(u podfile.Usage) { s.logs[c.Name] = u })
	})
	return s, errors.Join(errs...)
}

// localKind is the directory of a volume whose files are on the node's disk,
// or nothing.
func localKind(v *corev1.Volume) string {
	switch {
	case v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault:
		return "kubernetes.io~empty-dir"
	case v.ConfigMap != nil:
		return "kubernetes.io~configmap"
	}
	return ""
}
