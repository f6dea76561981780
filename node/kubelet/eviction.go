package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
)

const (
	pressurePeriod = 10 * time.Second
	// calm is how long a condition stays after the pressure has gone.
	calm = 5 * time.Minute
)

// pressure is what the node is short of.
type pressure struct{ memory, disk, pids bool }

// A signal is something that can run out.
type signal struct {
	name     string
	resource corev1.ResourceName
	// read gives what is available and what there is in all.
	read func(*Kubelet) (available, all int64, err error)
}

var signals = []signal{
	{"memory.available", corev1.ResourceMemory, func(*Kubelet) (int64, int64, error) {
		m, err := meminfo()
		if err != nil {
			return 0, 0, err
		}
		used := m["MemTotal"] - m["MemFree"] - m["Inactive(file)"]
		return m["MemTotal"] - used, m["MemTotal"], nil
	}},
	{"nodefs.available", corev1.ResourceEphemeralStorage, func(k *Kubelet) (int64, int64, error) {
		d, err := statDisk(k.cfg.RootDir)
		return int64(d.free), int64(d.size), err
	}},
	{"nodefs.inodesFree", "inodes", func(k *Kubelet) (int64, int64, error) {
		d, err := statDisk(k.cfg.RootDir)
		return int64(d.inodesFree), int64(d.inodes), err
	}},
	{"imagefs.available", corev1.ResourceEphemeralStorage, func(k *Kubelet) (int64, int64, error) {
		d, err := statDisk(k.imageDir())
		return int64(d.free), int64(d.size), err
	}},
	{"imagefs.inodesFree", "inodes", func(k *Kubelet) (int64, int64, error) {
		d, err := statDisk(k.imageDir())
		return int64(d.inodesFree), int64(d.inodes), err
	}},
}

// watchPressure looks at what can run out and makes room.
func (k *Kubelet) watchPressure(ctx context.Context) {
	if !k.waitRuntime(ctx) {
		return
	}
	last := map[corev1.ResourceName]time.Time{}
	for {
		k.enforceLimits(ctx)
		k.relieve(ctx, last)
		if !sleep(ctx, pressurePeriod) {
			return
		}
	}
}

// relieve sets the node's conditions and evicts one pod if it must.
func (k *Kubelet) relieve(ctx context.Context, last map[corev1.ResourceName]time.Time) {
	now := time.Now()
	evicted := false
	for _, s := range signals {
		set := k.cfg.EvictionHard[s.name]
		if set == "" {
			continue
		}
		available, all, err := s.read(k)
		if err != nil || all == 0 {
			continue
		}
		limit := threshold(set, all)
		if available >= limit {
			continue
		}
		kind := s.resource
		if kind == "inodes" {
			kind = corev1.ResourceEphemeralStorage
		}
		last[kind] = now
		if evicted || ctx.Err() != nil {
			continue
		}
		k.events.Event(k.nodeRef(), corev1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim "+string(s.resource))
		if kind == corev1.ResourceEphemeralStorage {
			if freed, err := k.freeImages(ctx, 1<<62, now); err == nil && freed > 0 {
				if a, _, err := s.read(k); err == nil && a >= limit {
					continue // images were enough
				}
			}
		}
		evicted = k.evictOne(s.resource, available, limit)
	}
	next := pressure{
		memory: now.Sub(last[corev1.ResourceMemory]) < calm,
		disk:   now.Sub(last[corev1.ResourceEphemeralStorage]) < calm,
	}
	if old := k.pressure.Swap(&next); *old != next {
		k.wakeNode()
	}
}

// A candidate for eviction and what it uses.
type candidate struct {
	w          *worker
	pod        *corev1.Pod
	usage, req int64
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
		return int(compare64(b.usage-b.req, a.usage-a.req))
	})
}

func (k *Kubelet) evictOne(name corev1.ResourceName, available, limit int64) bool {
	var all []candidate
	for _, w := range k.all() {
		s := w.shown.Load()
		if s.ended || s.view == nil || len(s.view.running()) == 0 || isCritical(s.pod) || s.pod.DeletionTimestamp != nil {
			continue
		}
		c := candidate{w: w, pod: s.pod}
		requests := resourcehelper.PodRequests(s.pod, resourcehelper.PodResourcesOptions{})
		if name == corev1.ResourceMemory {
			_, set, err := k.cgroups.Memory(k.podCgroup(s.pod))
			if err != nil {
				continue
			}
			c.usage, c.req = int64(set), requests.Memory().Value()
		} else {
			c.usage = int64(dirSize(k.volumes.PodDir(string(s.pod.UID))) + dirSize(k.podLogDir(s.pod)))
			c.req = requests.StorageEphemeral().Value()
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return false
	}
	rank(all)
	c := all[0]
	var msg strings.Builder
	fmt.Fprintf(&msg, "The node was low on resource: %s. Threshold quantity: %s, available: %s. ", name, binary(limit), ki(available))
	for i := range c.pod.Spec.Containers {
		ct := &c.pod.Spec.Containers[i]
		req := ct.Resources.Requests[name]
		fmt.Fprintf(&msg, "Container %s was using %s, request is %s, has larger consumption of %s. ", ct.Name, ki(c.usage), req.String(), name)
		break
	}
	slog.Info("evicting pod", "pod", podRef(c.pod), "resource", string(name))
	k.evict(c.w, c.pod, msg.String(), 1)
	return true
}

func binary(n int64) string {
	q := resource.NewQuantity(n, resource.BinarySI)
	return q.String()
}

func ki(n int64) string { return fmt.Sprintf("%dKi", n/1024) }

func (k *Kubelet) evict(w *worker, pod *corev1.Pod, message string, grace int64) {
	k.events.Event(podReference(pod), corev1.EventTypeWarning, "Evicted", message)
	w.end(&ending{reason: "Evicted", message: message, grace: &grace, disruption: corev1.PodReasonTerminationByKubelet})
}

// enforceLimits evicts pods that take more disk than they may.
func (k *Kubelet) enforceLimits(ctx context.Context) {
	for _, w := range k.all() {
		s := w.shown.Load()
		if ctx.Err() != nil || s.ended || s.view == nil || len(s.view.running()) == 0 || s.pod.DeletionTimestamp != nil {
			continue
		}
		if msg := k.overLimit(s); msg != "" {
			k.evict(w, s.pod, msg, 1)
		}
	}
}

func (k *Kubelet) overLimit(s *shown) string {
	dir := k.volumes.PodDir(string(s.pod.UID))
	for i := range s.pod.Spec.Volumes {
		v := &s.pod.Spec.Volumes[i]
		if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() == 0 || v.EmptyDir.Medium != corev1.StorageMediumDefault {
			continue
		}
		if int64(dirSize(filepath.Join(dir, "volumes", "kubernetes.io~empty-dir", v.Name))) > v.EmptyDir.SizeLimit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, v.EmptyDir.SizeLimit.String())
		}
	}
	limits := resourcehelper.PodLimits(s.pod, resourcehelper.PodResourcesOptions{})
	limit, ok := limits[corev1.ResourceEphemeralStorage]
	if !ok || limit.IsZero() {
		return ""
	}
	used := dirSize(dir) + dirSize(k.podLogDir(s.pod))
	if len(s.pod.Spec.Containers) == 1 && int64(used) > limit.Value() {
		return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", s.pod.Spec.Containers[0].Name, limit.String())
	}
	if int64(used) > limit.Value() {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	return ""
}

// admitPressure keeps pods off a node that is short of something.
func admitPressure(pod *corev1.Pod, p *pressure) *rejection {
	if p == nil || !p.memory && !p.disk && !p.pids || isCritical(pod) {
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
		if computeQOS(pod) != corev1.PodQOSBestEffort {
			return nil
		}
		if corev1helpers.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, &corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}, true) {
			return nil
		}
	}
	return &rejection{"Evicted", fmt.Sprintf("The node had condition: %v. ", have)}
}
