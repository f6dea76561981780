package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"knarr/internal/features"
	"knarr/node/kubelet/deviceplugin"
	memorystate "knarr/node/kubelet/memorymanager/state"
	"knarr/node/kubelet/podresources"
)

// newDevices makes what gives containers their devices.
func (k *Kubelet) newDevices() {
	k.devices = deviceplugin.New(deviceplugin.Config{
		RootDir: k.cfg.RootDir, Active: k.activePods, Changed: k.wakeNode, Health: k.pokePod, Near: k.alignment.near,
		Registered: func(resource string) { k.metrics.pluginsRegistered.WithLabelValues(resource).Inc() },
		Allocated: func(resource string, took time.Duration) {
			k.metrics.deviceTook.WithLabelValues(resource).Observe(took.Seconds())
		},
	})
}

// activePods are the pods that have not ended, once all are known.
func (k *Kubelet) activePods() (map[types.UID]bool, bool) {
	if !k.synced.isOpen() || !k.static.isOpen() {
		return nil, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.active(), true
}

// active are the pods that have not ended; the lock is held.
func (k *Kubelet) active() map[types.UID]bool {
	active := map[types.UID]bool{}
	for _, w := range k.workers {
		if w.active() {
			active[w.uid] = true
		}
	}
	return active
}

// active says whether the pod has not ended.
func (w *worker) active() bool {
	s := w.shown.Load()
	return !s.ended && s.status.Phase != corev1.PodFailed && s.status.Phase != corev1.PodSucceeded
}

// servePlugins takes device plugins until ctx ends.
func (k *Kubelet) servePlugins(ctx context.Context) {
	k.serveSocket(ctx, "device plugins are not available", func(ctx context.Context) error {
		k.pluginsErr.Store(nil)
		err := k.devices.Run(ctx)
		if err != nil {
			k.pluginsErr.Store(&err)
		}
		return err
	})
}

// servePodResources tells who has which resources until ctx ends.
func (k *Kubelet) servePodResources(ctx context.Context) {
	c := podresources.Config{
		Socket: filepath.Join(k.cfg.RootDir, "pod-resources", "kubelet.sock"), Devices: k.devices, Counted: k.metrics.podResources,
		CPUs: func(pod *corev1.Pod, container string) []int64 {
			return wide(k.cpus.Exclusive(pod.UID, container).List())
		},
		AllCPUs: func() []int64 { return wide(k.cpus.Allocatable().List()) },
		Memory: func(pod *corev1.Pod, container string) []*podresourcesapi.ContainerMemory {
			return blocks(k.memory.Blocks(pod.UID, container))
		},
		AllMemory: func() []*podresourcesapi.ContainerMemory { return blocks(k.memory.Allocatable()) },
		Pods:      func() []*corev1.Pod { return shownPods(k.all(), (*worker).active) },
		AllPods:   func() []*corev1.Pod { return shownPods(k.all(), func(*worker) bool { return true }) },
		ListAll:   !features.Set(k.cfg.Settings.FeatureGates).Enabled("KubeletPodResourcesListUseActivePods"),
	}
	k.serveSocket(ctx, "the resources of pods are not served", func(ctx context.Context) error { return podresources.Run(ctx, c) })
}

// shownPods are the pods of those workers that which says.
func shownPods(of []*worker, which func(*worker) bool) (pods []*corev1.Pod) {
	for _, w := range of {
		if which(w) {
			pods = append(pods, w.shown.Load().pod)
		}
	}
	return pods
}

// followDrivers watches for the sockets of storage drivers.
func (k *Kubelet) followDrivers(ctx context.Context) {
	k.serveSocket(ctx, "storage drivers are not available", k.drivers.Run)
}

// socketRetry is how often a socket that could not be served, or watched for, is tried again.
const socketRetry = 10 * time.Second

// serveSocket serves until ctx ends, and tries again if it cannot.
func (k *Kubelet) serveSocket(ctx context.Context, what string, serve func(context.Context) error) {
	for logged := ""; ; {
		err := serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && logged != err.Error() {
			logged = err.Error()
			slog.Warn(what+", trying again", "err", err)
		}
		if !sleep(ctx, socketRetry) {
			return
		}
	}
}

// ensureDevices gives the pod's containers their devices, and says whether they have
// them. A pod that cannot have them is rejected.
func (w *worker) ensureDevices(ctx context.Context) bool {
	key, pod := opKey{kind: opDevices}, w.pod
	if w.busy(key) {
		return false
	}
	if w.equipped || len(w.observed.Containers) > 0 || !w.k.devices.Needs(pod) {
		w.equipped = true // those that run have what they have
		return true
	}
	w.begin(ctx, key, func(ctx context.Context) func() {
		err := w.k.devices.Allocate(ctx, pod)
		return func() {
			if err == nil || errors.Is(err, context.Canceled) {
				w.equipped = err == nil
				return
			}
			r := unexpected(err)
			w.refuse(r.reason, r.message)
		}
	})
	return false
}

// refuse ends a pod that was admitted and that the node cannot run after all.
func (w *worker) refuse(reason, message string) {
	w.k.metrics.rejected(reason)
	w.k.events.Event(w.eventRef(), corev1.EventTypeWarning, reason, message)
	w.k.release(w.uid)
	w.end(&ending{reason: reason, message: message, rejected: true})
}

// showDevices sets what the Node has of devices. A resource whose plugin has gone for
// good stays with none.
func (k *Kubelet) showDevices(s *corev1.NodeStatus) {
	if k.devices == nil {
		return
	}
	capacity, allocatable, gone := k.devices.Resources()
	for name, q := range capacity {
		s.Capacity[name], s.Allocatable[name] = q, allocatable[name]
	}
	for _, name := range gone {
		s.Capacity[name], s.Allocatable[name] = *resource.NewQuantity(0, resource.DecimalSI), *resource.NewQuantity(0, resource.DecimalSI)
	}
}

// healthOfDevices shows in a status how the devices of containers are.
func (k *Kubelet) healthOfDevices(pod types.UID, s *corev1.PodStatus) {
	for i := range s.ContainerStatuses {
		if have := k.devices.Status(pod, s.ContainerStatuses[i].Name); len(have) > 0 {
			s.ContainerStatuses[i].AllocatedResourcesStatus = have
		}
	}
}

func wide(ids []int) (out []int64) {
	for _, id := range ids {
		out = append(out, int64(id))
	}
	return out
}

// blocks is memory as agents are told of it.
func blocks(all []memorystate.Block) (out []*podresourcesapi.ContainerMemory) {
	for _, b := range all {
		m := &podresourcesapi.ContainerMemory{MemoryType: string(b.Type), Size: b.Size, Topology: &podresourcesapi.TopologyInfo{}}
		for _, id := range b.NUMAAffinity {
			m.Topology.Nodes = append(m.Topology.Nodes, &podresourcesapi.NUMANode{ID: int64(id)})
		}
		out = append(out, m)
	}
	return out
}
