package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/eviction"
	"knarr/node/kubelet/podspec"
)

const (
	pressurePeriod = 10 * time.Second
	// evictedCleanup is how long the volumes of a pod that was evicted may take to go, after
	// its containers had killTime to end.
	evictedCleanup = 30 * time.Second
)

// pressure is what the node is short of.
type pressure struct{ memory, disk, pids bool }

// resourceInodes and resourcePIDs are what upstream calls them where they run out.
const (
	resourceInodes corev1.ResourceName = "inodes"
	resourcePIDs   corev1.ResourceName = "pids"
)

// A signal is something that can run out.
type signal struct {
	name     string
	resource corev1.ResourceName
	// disk says that it is a disk that is short.
	disk bool
	// read gives what is available and what there is in all.
	read func(*Kubelet) (available, all int64, err error)
}

// signals are all of them.
var signals = []signal{
	{eviction.MemoryAvailable, corev1.ResourceMemory, false, func(*Kubelet) (int64, int64, error) {
		m, err := meminfo()
		if err != nil {
			return 0, 0, err
		}
		return availableMemory(m), m["MemTotal"], nil
	}},
	{eviction.AllocatableMemoryAvailable, corev1.ResourceMemory, false, func(k *Kubelet) (int64, int64, error) {
		_, set, err := k.cgroups.Memory(k.cgroupParent())
		all := k.absolute(corev1.ResourceMemory)
		return all - int64(set), all, err
	}},
	{eviction.NodeFsAvailable, corev1.ResourceEphemeralStorage, true, bytesOf((*Kubelet).rootDir)},
	{eviction.NodeFsInodesFree, resourceInodes, true, inodesOf((*Kubelet).rootDir)},
	{eviction.ImageFsAvailable, corev1.ResourceEphemeralStorage, true, bytesOf((*Kubelet).imageDir)},
	{eviction.ImageFsInodesFree, resourceInodes, true, inodesOf((*Kubelet).imageDir)},
	{eviction.ContainerFsAvailable, corev1.ResourceEphemeralStorage, true, bytesOf((*Kubelet).containerDir)},
	{eviction.ContainerFsInodesFree, resourceInodes, true, inodesOf((*Kubelet).containerDir)},
	{eviction.PIDAvailable, resourcePIDs, false, func(*Kubelet) (int64, int64, error) {
		r := rlimit(readTrim("/proc/sys/kernel/pid_max"), readTrim("/proc/sys/kernel/threads-max"), readTrim("/proc/loadavg"), metav1.Now())
		if r == nil || r.MaxPID == nil || r.NumOfRunningProcesses == nil {
			return 0, 0, errors.New("count processes")
		}
		return *r.MaxPID - *r.NumOfRunningProcesses, *r.MaxPID, nil
	}},
}

// availableMemory is what is free, or holds files that nobody has used lately: all but what is
// worked with.
func availableMemory(meminfo map[string]int64) int64 {
	return meminfo["MemFree"] + meminfo["Inactive(file)"]
}

// text is how much there is of what can run out: bytes in binary units, what is counted in
// decimal ones.
func (s signal) text(n int64) string {
	return eviction.Text(n, s.resource == resourceInodes || s.resource == resourcePIDs)
}

// bytesOf reads how much a disk has left.
func bytesOf(dir func(*Kubelet) string) func(*Kubelet) (int64, int64, error) {
	return func(k *Kubelet) (int64, int64, error) {
		d, err := k.statDisk(dir(k))
		return int64(d.free), int64(d.size), err
	}
}

// inodesOf reads how many more files a disk can have.
func inodesOf(dir func(*Kubelet) string) func(*Kubelet) (int64, int64, error) {
	return func(k *Kubelet) (int64, int64, error) {
		d, err := k.statDisk(dir(k))
		return int64(d.inodesFree), int64(d.inodes), err
	}
}

// signalNamed is the signal of a threshold, or none.
func signalNamed(name string) (signal, bool) {
	i := slices.IndexFunc(signals, func(s signal) bool { return s.name == name })
	if i < 0 {
		return signal{}, false
	}
	return signals[i], true
}

// watchPressure looks at what can run out and makes room.
func (k *Kubelet) watchPressure(ctx context.Context) {
	if !k.waitRuntime(ctx) {
		return
	}
	s := k.cfg.Settings
	all, _ := eviction.Parse(s.EvictionHard, s.EvictionSoft, s.EvictionSoftGracePeriod, s.EvictionMinimumReclaim,
		slices.Contains(s.EnforceNodeAllocatable, configuration.PodsEnforcement) && k.cgroupParent() != "-") // checked by New
	state, last, warned := &eviction.State{Transition: s.EvictionPressureTransitionPeriod.Duration}, evicting{}, map[string]bool{}
	for {
		with, ignored := eviction.WithContainerFs(all, k.layout())
		for _, t := range ignored {
			if !warned[t.Signal] {
				warned[t.Signal] = true
				slog.Warn("threshold of eviction is ignored: what containers write has the thresholds of the disk it shares", "signal", t.Signal)
			}
		}
		k.relieve(ctx, with, state, &last)
		if last.awaited(time.Now()) {
			waitEnded(ctx, last.workers, min(pressurePeriod, time.Until(last.until)))
			if ctx.Err() != nil {
				return
			}
		} else if !sleep(ctx, pressurePeriod) {
			return
		}
	}
}

// An evicting is what was evicted last, with what grace, seconds, and until when it is waited
// for: what it frees may be enough.
type evicting struct {
	workers []*worker
	grace   int64
	until   time.Time
}

func evictingNow(grace int64, workers ...*worker) evicting {
	return evicting{workers, grace, time.Now().Add(killTime(grace) + evictedCleanup)}
}

// awaited says whether pods are still to end, and have time to.
func (e *evicting) awaited(now time.Time) bool {
	return now.Before(e.until) && slices.ContainsFunc(e.workers, func(w *worker) bool { return !w.shown.Load().ended })
}

// urgent are those thresholds of met that do not wait until what was evicted has ended: a
// hard one, while pods have a grace to end for a soft one.
func (e *evicting) urgent(now time.Time, met []eviction.Threshold) []eviction.Threshold {
	if !e.awaited(now) {
		return met
	}
	return slices.DeleteFunc(met, func(t eviction.Threshold) bool { return !t.Hard() || e.grace <= hardGrace })
}

// watchLimits evicts pods that take more disk than they may. It is a loop of its own: pods
// decide how long that takes to count, and memory runs out meanwhile.
func (k *Kubelet) watchLimits(ctx context.Context) {
	if !*k.cfg.Settings.LocalStorageCapacityIsolation || !k.waitRuntime(ctx) {
		return
	}
	for {
		k.enforceLimits(ctx)
		if !sleep(ctx, pressurePeriod) {
			return
		}
	}
}

// observe reads the signals of thresholds. What cannot be read is left out, and logged.
func (k *Kubelet) observe(all []eviction.Threshold) map[string]eviction.Observation {
	out := map[string]eviction.Observation{}
	for _, t := range all {
		if s, ok := signalNamed(t.Signal); ok {
			available, in, err := s.read(k)
			if err != nil {
				if k.news.IsNew("read signal "+t.Signal, err.Error()) {
					slog.Warn("Eviction manager: no observation found for eviction signal", "signal", t.Signal, "err", err)
				}
				continue
			}
			out[t.Signal] = eviction.Observation{Available: available, All: in}
		}
	}
	return out
}

// relieve sets the node's conditions and evicts one pod if it must, which is the last one then.
func (k *Kubelet) relieve(ctx context.Context, all []eviction.Threshold, state *eviction.State, last *evicting) {
	now := time.Now()
	observed := k.observe(all)
	is, met := state.Step(now, all, observed)
	next := pressure{memory: is.Memory, disk: is.Disk, pids: is.PIDs}
	if old := k.pressure.Swap(&next); *old != next {
		k.wakeNode()
	}
	met = last.urgent(now, met)
	if len(met) == 0 || ctx.Err() != nil {
		return
	}
	t := met[0]
	what, _ := signalNamed(t.Signal)
	if k.news.IsNew("threshold "+t.Signal, "") {
		slog.Warn("a threshold of eviction is met", "signal", t.Signal, "available", observed[t.Signal].Available, "of", observed[t.Signal].All, "threshold", t.Value.Of(observed[t.Signal].All))
	}
	k.events.Event(k.nodeRef(), corev1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim "+string(what.resource))
	if what.disk {
		takes := eviction.TakesOf(t.Signal, k.layout())
		if k.makeSpace(ctx, takes, now) && !k.stillMet(t, met) {
			return
		}
		if *k.cfg.Settings.LocalStorageCapacityIsolation {
			limited, _ := k.limited()
			if over := k.evictOver(ctx, limited); len(over) > 0 {
				*last = evictingNow(hardGrace, over...) // which come before those that take no more than they may
				return
			}
		}
		if takes.Images && k.callOffPulls(ctx, func() bool { return k.stillMet(t, met) }) {
			return
		}
	}
	evicted := k.evictOne(ctx, what, t, observed[t.Signal])
	if evicted == nil {
		if k.news.IsNew("evict for "+t.Signal, "") {
			slog.Warn("Eviction manager: unable to evict any pods from the node", "signal", t.Signal, "resource", string(what.resource))
		}
		return
	}
	*last = evictingNow(*evicted.evicted.Load(), evicted)
	for _, m := range met {
		k.metrics.evictionAge.WithLabelValues(m.Signal).Observe(time.Since(now).Seconds())
	}
}

// makeSpace removes what no pod needs, and says whether there was anything to look at:
// what is left of pods that have ended, then images, which can be had again.
func (k *Kubelet) makeSpace(ctx context.Context, takes eviction.Takes, now time.Time) bool {
	if takes.Layers {
		k.freeEnded(ctx)
	}
	if takes.Images {
		if _, err := k.freeImages(ctx, 1<<62, now); err != nil && ctx.Err() == nil {
			slog.Warn("remove images that nobody uses", "err", err)
		}
	}
	return takes.Layers || takes.Images
}

// stillMet says whether one of the thresholds of a disk is met after images have gone.
func (k *Kubelet) stillMet(t eviction.Threshold, met []eviction.Threshold) bool {
	now := k.observe(met)
	for _, m := range met {
		what, _ := signalNamed(m.Signal)
		o, known := now[m.Signal]
		if what.disk && (!known || o.Available < m.Value.Of(o.All)+m.Reclaim.Of(o.All)) {
			return true
		}
	}
	return false
}

// A candidate for eviction and what it uses.
type candidate struct {
	w          *worker
	pod        *corev1.Pod
	usage, req int64
	grace      int64 // that it would have, seconds
}

// rank puts first who exceeds its request, then the less important, then who
// exceeds it most.
func rank(all []candidate) {
	priority := func(p *corev1.Pod) int32 {
		if p.Spec.Priority != nil {
			return *p.Spec.Priority
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		if x, y := a.usage > a.req, b.usage > b.req; x != y {
			if x {
				return -1
			}
			return 1
		}
		if x, y := priority(a.pod), priority(b.pod); x != y {
			return int(x) - int(y)
		}
		return cmp.Compare(b.usage-b.req, a.usage-a.req)
	})
}

// layout is which disks the node's files, images and containers' files share; one, if
// they do not answer.
func (k *Kubelet) layout() eviction.Layout {
	node, err := k.statDisk(k.rootDir())
	images, ierr := k.statDisk(k.imageDir())
	containers, cerr := k.statDisk(k.containerDir())
	if err != nil || ierr != nil || cerr != nil {
		return eviction.Together
	}
	return eviction.LayoutOf(images.id == node.id, containers.id == node.id, images.id == containers.id)
}

// evictable says whether a pod may be evicted: one that is ending may have to do so sooner.
func (w *worker) evictable() bool {
	s := w.shown.Load()
	return w.active() && s.observed != nil && !podspec.IsCritical(s.pod)
}

// frees says whether the end of a pod that uses so much of a resource frees some of it. Where
// no container runs, as between two crashes, there are no processes, but there are files; and
// memory, if they are in it.
func frees(s *shown, name corev1.ResourceName, usage int64) bool {
	switch {
	case len(s.observed.Running()) > 0:
		return true
	case name == resourcePIDs || usage == 0:
		return false
	case name == corev1.ResourceMemory:
		return slices.ContainsFunc(s.pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory
		})
	}
	return true
}

// evictOne evicts the pod that has most to do with it, if there is one, and returns it.
func (k *Kubelet) evictOne(ctx context.Context, what signal, t eviction.Threshold, o eviction.Observation) *worker {
	name, takes := what.resource, eviction.TakesOf(t.Signal, k.layout())
	switch name {
	case corev1.ResourceMemory, resourcePIDs:
		k.measureLayers(ctx) // pods decide how long their files take to count, and memory does not wait
	default:
		k.measureLayers(ctx)
		k.measurePods(ctx, k.all(), true)
	}
	var all []candidate
	for _, w := range k.all() {
		s := w.shown.Load()
		c := candidate{w: w, pod: s.pod, grace: k.evictionGrace(t, s.pod)}
		if !w.evictable() || !w.evictableWithin(c.grace) {
			continue
		}
		requests := resourcehelper.PodRequests(s.pod, resourcehelper.PodResourcesOptions{})
		switch name {
		case corev1.ResourceMemory:
			_, set, err := k.cgroups.Memory(k.podCgroup(s.pod))
			if err != nil {
				continue
			}
			c.usage, c.req = int64(set), requests.Memory().Value()
		case resourcePIDs:
			n, err := k.cgroups.Pids(k.podCgroup(s.pod))
			if err != nil {
				continue
			}
			c.usage = int64(n)
		case resourceInodes:
			c.usage = int64(k.storageOf(s.pod.UID).total(takes.Files, takes.Layers).Inodes)
		default:
			c.usage = int64(k.storageOf(s.pod.UID).total(takes.Files, takes.Layers).Bytes)
			c.req = requests.StorageEphemeral().Value()
		}
		if what.disk && takes.Files && k.storage.hides(s.pod.UID) {
			c.usage = math.MaxInt64 // what it hides may be all that others do not have
		}
		if frees(s, name, c.usage) {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	rank(all)
	c := all[0]
	slog.Info("evicting pod", "pod", podspec.Format(c.pod), "resource", string(name))
	message, annotations := evictionMessage(c, name, k.storageOf(c.pod.UID), what.text(o.Available), t.Value.Text(o.All))
	k.evict(c.w, c.pod, what.name, message, annotations, c.grace, corev1.PodReasonTerminationByKubelet)
	return c.w
}

// hardGrace is how many seconds a pod gets to end that goes at once.
const hardGrace = 1

// evictionGrace is how many seconds a pod gets to end: one at least, or its preStop hooks
// would not be called.
func (k *Kubelet) evictionGrace(t eviction.Threshold, pod *corev1.Pod) int64 {
	if t.Hard() {
		return hardGrace
	}
	grace := int64(k.cfg.Settings.EvictionMaxPodGracePeriod)
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil && (grace < 0 || *own < grace) {
		grace = *own
	}
	return max(grace, hardGrace)
}

// Annotations of the events that tell of evictions, and of what was short.
const (
	offendingContainers      = "offending_containers"
	offendingContainersUsage = "offending_containers_usage"
	offendingPod             = "offending_pod"
	offendingPodUsage        = "offending_pod_usage"
	starvedResource          = "starved_resource"
)

// evictionMessage says what the node was short of, and which containers of the
// pod have more of it than they asked for; annotations have the same for programs.
func evictionMessage(of candidate, name corev1.ResourceName, used podStorage, available, limit string) (message string, annotations map[string]string) {
	var msg strings.Builder
	fmt.Fprintf(&msg, "The node was low on resource: %s. Threshold quantity: %s, available: %s. ", name, limit, available)
	annotations = map[string]string{starvedResource: string(name)}
	if whole := of.pod.Spec.Resources; whole != nil && name == corev1.ResourceMemory {
		if request, ok := whole.Requests[name]; ok {
			fmt.Fprintf(&msg, "Pod %s was using %s, request is %s, has larger consumption of %v. ", of.pod.Name, binary(of.usage), request.String(), name)
			annotations[offendingPod], annotations[offendingPodUsage] = of.pod.Name, binary(of.usage)
		}
	}
	var names, usages []string
	podspec.EachContainer(of.pod, func(c *corev1.Container, kind podspec.ContainerKind) {
		var usage int64
		switch name {
		case corev1.ResourceEphemeralStorage:
			usage = int64(used.layers[c.Name].Bytes + used.logs[c.Name].Bytes)
		case corev1.ResourceMemory:
			usage = int64(used.memory[c.Name])
		}
		req := c.Resources.Requests[name]
		if kind != podspec.EphemeralContainer && usage > req.Value() {
			fmt.Fprintf(&msg, "Container %s was using %s, request is %s, has larger consumption of %s. ", c.Name, binary(usage), req.String(), name)
			names, usages = append(names, c.Name), append(usages, binary(usage))
		}
	})
	annotations[offendingContainers], annotations[offendingContainersUsage] = strings.Join(names, ","), strings.Join(usages, ",")
	return msg.String(), annotations
}

func binary(n int64) string { return eviction.Text(n, false) }

// evictableWithin says whether a pod that was evicted, if it was, would have to end sooner
// with that grace, seconds. One that did not end in its time is left at that: others are next.
func (w *worker) evictableWithin(grace int64) bool {
	before := w.evicted.Load()
	return before == nil || grace < *before
}

// evict ends a pod, unless the other loop has just done so. One that is to end sooner than it
// was is evicted still. One that the node ends for want of something has a disruption; one that
// is over a limit of its own has none: it is to blame.
func (k *Kubelet) evict(w *worker, pod *corev1.Pod, signal, message string, annotations map[string]string, grace int64, disruption string) {
	before := w.evicted.Load()
	if before != nil && grace >= *before || !w.evicted.CompareAndSwap(before, &grace) {
		return
	}
	if before == nil {
		k.metrics.evictions.WithLabelValues(signal).Inc()
		k.events.AnnotatedEventf(podReference(pod), annotations, corev1.EventTypeWarning, "Evicted", "%s", message)
	}
	w.end(&ending{reason: "Evicted", message: message, grace: &grace, disruption: disruption})
}

// enforceLimits measures the pods that have a limit, and evicts those over it.
func (k *Kubelet) enforceLimits(ctx context.Context) {
	limited, layers := k.limited()
	if len(limited) == 0 {
		return
	}
	if layers {
		k.measureLayers(ctx)
	}
	k.measurePods(ctx, limited, false)
	k.evictOver(ctx, limited)
}

// limited are the pods that have a limit of what they take of disks, and whether one of them
// has one of what its containers do.
func (k *Kubelet) limited() (limited []*worker, layers bool) {
	for _, w := range k.all() {
		s := w.shown.Load()
		if !w.evictable() || !w.evictableWithin(hardGrace) {
			continue
		}
		volume, container := storageLimits(s.pod)
		if volume || container {
			limited = append(limited, w)
		}
		layers = layers || container
	}
	return limited, layers
}

// evictOver evicts those of pods that take more than they may, by what was measured last.
func (k *Kubelet) evictOver(ctx context.Context, limited []*worker) (evicted []*worker) {
	if len(limited) == 0 {
		return nil
	}
	dedicated := k.layout() != eviction.Together
	for _, w := range limited {
		pod := w.shown.Load().pod
		if ctx.Err() != nil {
			break
		}
		if msg := overLimit(pod, k.storageOf(pod.UID), dedicated); msg != "" {
			k.evict(w, pod, limitSignal(msg), msg, nil, hardGrace, "")
			evicted = append(evicted, w)
		}
	}
	return evicted
}

// storageLimits says whether a volume or a container of the pod has a limit.
func storageLimits(pod *corev1.Pod) (volume, container bool) {
	for i := range pod.Spec.Volumes {
		if e := pod.Spec.Volumes[i].EmptyDir; e != nil && e.SizeLimit != nil {
			volume = true
		}
	}
	_, container = resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	return volume, container
}

// overLimit says which of a pod's limits it is over, or nothing: that of a
// volume, of the pod, of a container. Where images have a file system of their
// own, what a container writes to its own files is not held against its limit.
func overLimit(pod *corev1.Pod, used podStorage, dedicated bool) string {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 {
			continue
		}
		if int64(used.volumes[v.Name].Bytes) > v.EmptyDir.SizeLimit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, v.EmptyDir.SizeLimit.String())
		}
	}
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	if limit, ok := limits[corev1.ResourceEphemeralStorage]; ok && int64(used.total(true, true).Bytes) > limit.Value() {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		limit := c.Resources.Limits.StorageEphemeral()
		has := used.logs[c.Name].Bytes
		if !dedicated {
			has += used.layers[c.Name].Bytes
		}
		if !limit.IsZero() && int64(has) > limit.Value() {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
		}
	}
	return ""
}

// limitSignal is the signal that metrics have for what a pod is over.
func limitSignal(message string) string {
	switch {
	case strings.HasPrefix(message, "Usage of EmptyDir"):
		return "emptydirfs.limit"
	case strings.HasPrefix(message, "Pod "):
		return "ephemeralpodfs.limit"
	}
	return "ephemeralcontainerfs.limit"
}

// admitPressure keeps pods off a node that is short of something.
func admitPressure(pod *corev1.Pod, p *pressure) *rejection {
	if p == nil || !p.memory && !p.disk && !p.pids || podspec.IsCritical(pod) {
		return nil
	}
	var have []string
	if p.memory {
		have = append(have, string(corev1.NodeMemoryPressure))
	}
	if p.disk {
		have = append(have, string(corev1.NodeDiskPressure))
	}
	if p.pids {
		have = append(have, string(corev1.NodePIDPressure))
	}
	if p.memory && !p.disk && !p.pids {
		if podspec.ComputeQOS(pod) != corev1.PodQOSBestEffort {
			return nil
		}
		if corev1helpers.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, &corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}, true) {
			return nil
		}
	}
	return &rejection{"Evicted", fmt.Sprintf("The node had condition: %v. ", have)}
}
