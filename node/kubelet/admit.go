package kubelet

import (
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/deviceplugin"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/preemption"
)

// A rejection is why a pod is not taken.
type rejection struct{ reason, message string }

// admit says whether the node takes a pod, nil if it does; the lock is held.
func (k *Kubelet) admit(pod *corev1.Pod) *ending {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return nil // never to run
	}
	if pod.Status.StartTime != nil { // taken before
		if r := k.align(pod); r != nil {
			slog.Warn("a pod that runs cannot have its resources for itself", "pod", podspec.Format(pod), "reason", r.reason, "err", r.message)
		}
		return nil
	}
	var others []*corev1.Pod
	for _, w := range k.workers {
		// What the API no longer has takes no room, whatever is left of it here: the
		// scheduler has given its place away.
		if s := w.shown.Load(); !w.isGone() && !s.ended && s.status.Phase != corev1.PodFailed && s.status.Phase != corev1.PodSucceeded {
			others = append(others, s.pod)
		}
	}
	if k.shuttingDown.Load() {
		const reason, message = "NodeShutdown", "Pod was rejected as the node is shutting down."
		k.events.Event(podReference(pod), corev1.EventTypeWarning, reason, message)
		return &ending{reason: reason, message: message, rejected: true}
	}
	r := admitAppArmor(pod, k.appArmor)
	if r == nil {
		r = admission(pod, others, k.withDevices(pod), k.pressure.Load(), k.cfg.Settings.AllowedUnsafeSysctls)
	}
	if r == nil {
		if r = k.align(pod); r == nil {
			return nil
		}
	}
	if isCritical(pod) && strings.HasPrefix(r.reason, "OutOf") {
		err := k.preempt(pod, others)
		if err == nil {
			return nil // on the CPUs of all: those of the others are not free yet
		}
		r = &rejection{"UnexpectedAdmissionError", fmt.Sprintf("Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: %v", err)}
	}
	k.events.Event(podReference(pod), corev1.EventTypeWarning, r.reason, r.message)
	return &ending{reason: r.reason, message: r.message, rejected: true}
}

// preempt ends the pods that have the room which a critical one needs; the lock is held.
func (k *Kubelet) preempt(pod *corev1.Pod, others []*corev1.Pod) error {
	missing := shortages(pod, others, k.withDevices(pod))
	victims, err := preemption.Victims(others, missing, func(other *corev1.Pod) bool { return comesBefore(pod, other) })
	if err != nil {
		return err
	}
	const message = "Preempted in order to admit critical pod"
	for _, v := range victims {
		w := k.workers[v.UID]
		if w == nil {
			continue
		}
		slog.Info("preempting pod", "pod", podspec.Format(v), "for", podspec.Format(pod))
		k.events.Event(podReference(v), corev1.EventTypeWarning, "Preempting", message)
		k.metrics.preemptions.WithLabelValues(string(missing[0].Resource)).Inc()
		w.end(&ending{reason: "Preempting", message: message, disruption: corev1.PodReasonTerminationByKubelet,
			why: "Pod was preempted by Kubelet to accommodate a critical pod."})
	}
	return nil
}

// comesBefore says whether a pod may take the room of another.
func comesBefore(pod, other *corev1.Pod) bool {
	if isCritical(pod) && !isCritical(other) {
		return true
	}
	a, b := pod.Spec.Priority, other.Spec.Priority
	return a != nil && b != nil && *a > *b
}

func isCritical(pod *corev1.Pod) bool {
	return isStatic(pod) || pod.Spec.Priority != nil && *pod.Spec.Priority >= 2000000000
}

// withDevices is the Node with at least the devices that the pod has already.
func (k *Kubelet) withDevices(pod *corev1.Pod) *corev1.Node {
	n := k.node.Load()
	if n == nil || k.devices == nil {
		return n
	}
	n = &corev1.Node{ObjectMeta: n.ObjectMeta, Spec: n.Spec, Status: n.Status}
	n.Status.Allocatable = k.devices.Used(pod, n.Status.Allocatable)
	return n
}

// admission is the pure decision.
func admission(pod *corev1.Pod, others []*corev1.Pod, node *corev1.Node, p *pressure, unsafe []string) *rejection {
	if r := admitPressure(pod, p); r != nil {
		return r
	}
	if r := admitSysctls(pod, unsafe); r != nil {
		return r
	}
	if node == nil {
		return nil
	}
	if os := pod.Spec.OS; os != nil && string(os.Name) != runtime.GOOS {
		return &rejection{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	if os, ok := pod.Spec.NodeSelector[corev1.LabelOSStable]; ok && os != runtime.GOOS {
		return &rejection{"PodOSSelectorNodeLabelDoesNotMatch", fmt.Sprintf("Failed to admit pod as the `%s` label doesn't match node label", corev1.LabelOSStable)}
	}
	if r := admitResources(pod, others, node); r != nil {
		return r
	}
	predicate := func(name, why string) *rejection {
		return &rejection{name, fmt.Sprintf("Predicate %s failed: %s", name, why)}
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
		return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		return predicate("NodeName", "node(s) didn't match the requested node name")
	}
	if portTaken(pod, others) {
		return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	}
	if isStatic(pod) {
		return nil
	}
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute
	}, true)
	if untolerated {
		return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
	}
	return nil
}

func admitResources(pod *corev1.Pod, others []*corev1.Pod, node *corev1.Node) *rejection {
	all := short(pod, others, node)
	if len(all) == 0 {
		return nil
	}
	s := all[0]
	return &rejection{"OutOf" + string(s.name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", s.name, s.requested, s.used, s.capacity)}
}

// A shortage is a resource that the node has too little of for a pod.
type shortage struct {
	name                      corev1.ResourceName
	requested, used, capacity int64
}

// shortages are what other pods would have to give back.
func shortages(pod *corev1.Pod, others []*corev1.Pod, node *corev1.Node) (out []preemption.Requirement) {
	for _, s := range short(pod, others, node) {
		out = append(out, preemption.Requirement{Resource: s.name, Quantity: s.requested - (s.capacity - s.used)})
	}
	return out
}

func short(pod *corev1.Pod, others []*corev1.Pod, node *corev1.Node) (all []shortage) {
	alloc := node.Status.Allocatable
	if len(alloc) == 0 {
		return nil
	}
	if have := alloc.Pods().Value(); int64(len(others))+1 > have {
		all = append(all, shortage{corev1.ResourcePods, 1, int64(len(others)), have})
	}
	used := map[corev1.ResourceName]int64{}
	want := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	names := slices.Sorted(maps.Keys(want))
	for _, o := range others {
		for _, name := range names {
			used[name] += preemption.Request(o, name)
		}
	}
	for _, name := range names {
		have, known := alloc[name]
		req := preemption.Request(pod, name)
		if req == 0 || !known && (name == corev1.ResourceEphemeralStorage || deviceplugin.Extended(string(name))) {
			continue // what is not counted here, or is somebody else's, who has counted it
		}
		all = append(all, shortage{name, req, used[name], have.Value()})
		last := &all[len(all)-1]
		if name == corev1.ResourceCPU {
			last.capacity = have.MilliValue()
		}
		if last.requested+last.used <= last.capacity {
			all = all[:len(all)-1]
		}
	}
	return all
}

func portTaken(pod *corev1.Pod, others []*corev1.Pod) bool {
	type port struct {
		proto corev1.Protocol
		n     int32
	}
	each := func(p *corev1.Pod, f func(port, string)) {
		lists := [][]corev1.Container{p.Spec.Containers}
		for i := range p.Spec.InitContainers {
			if podspec.IsSidecar(&p.Spec.InitContainers[i]) {
				lists = append(lists, p.Spec.InitContainers[i:i+1])
			}
		}
		for _, l := range lists {
			for i := range l {
				for _, c := range l[i].Ports {
					if c.HostPort > 0 {
						proto := c.Protocol
						if proto == "" {
							proto = corev1.ProtocolTCP
						}
						ip := c.HostIP
						if ip == "" {
							ip = "0.0.0.0"
						}
						f(port{proto, c.HostPort}, ip)
					}
				}
			}
		}
	}
	taken := map[port][]string{}
	for _, o := range others {
		each(o, func(p port, ip string) { taken[p] = append(taken[p], ip) })
	}
	clash := false
	each(pod, func(p port, ip string) {
		for _, t := range taken[p] {
			clash = clash || t == ip || t == "0.0.0.0" || ip == "0.0.0.0"
		}
	})
	return clash
}

// safeSysctls are those that do not reach out of a pod.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes",
	"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}

// admitAppArmor refuses what would run without the profile that confines it.
func admitAppArmor(pod *corev1.Pod, enabled bool) *rejection {
	if enabled || !criconfig.NeedsAppArmor(pod) {
		return nil
	}
	return &rejection{"AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
}

func admitSysctls(pod *corev1.Pod, unsafe []string) *rejection {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := strings.ReplaceAll(s.Name, "/", ".")
		net, ipc := strings.HasPrefix(name, "net."), strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") || name == "kernel.sem" || strings.HasPrefix(name, "fs.mqueue.")
		if pod.Spec.HostNetwork && net || pod.Spec.HostIPC && ipc {
			return &rejection{"SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowed with host %s enabled", s.Name, map[bool]string{true: "net", false: "ipc"}[net])}
		}
		ok := slices.Contains(safeSysctls, name) || slices.ContainsFunc(unsafe, func(u string) bool {
			if p, glob := strings.CutSuffix(u, "*"); glob {
				return strings.HasPrefix(name, p)
			}
			return name == u
		})
		if !ok {
			return &rejection{"SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowlisted", s.Name)}
		}
	}
	return nil
}
