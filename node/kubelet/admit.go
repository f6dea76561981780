package kubelet

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"

	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/preemption"
)

// A rejection is why a pod is not taken.
type rejection struct{ reason, message string }

// An admission is a pod that the node takes or does not.
type admission struct {
	k      *Kubelet
	pod    *corev1.Pod
	others []*corev1.Pod // that were taken and have not ended

	// victims have what is missing, which a critical pod takes from them.
	victims []*corev1.Pod
	missing []preemption.Requirement
}

// admitHandlers are asked one after the other, in upstream's order: the first one that
// does not take a pod says why. Those asked once give the pod something that it keeps; the
// others are asked again before it is given more of anything.
var admitHandlers = []struct {
	name  string
	once  bool
	admit func(*admission) *rejection
}{
	{"eviction", false, func(a *admission) *rejection { return admitPressure(a.pod, a.k.pressure.Load()) }},
	{"sysctls", false, func(a *admission) *rejection { return admitSysctls(a.pod, a.k.cfg.Settings.AllowedUnsafeSysctls) }},
	{"resources", true, func(a *admission) *rejection { return a.k.align(a.pod, a.others) }},
	{"predicates", false, (*admission).predicates},
	{"AppArmor", false, func(a *admission) *rejection { return admitAppArmor(a.pod, a.k.appArmor) }},
	{"declared features", false, func(a *admission) *rejection { return admitFeatures(a.pod) }},
	{"shutdown", false, (*admission).shutdown},
}

// admit says whether the node takes a pod, nil if it does; the lock is held. Room opens when
// the pod has what others had to go for; nil: it has it now.
func (k *Kubelet) admit(pod *corev1.Pod) (room *gate, e *ending) {
	if neverRuns(pod) {
		return nil, nil
	}
	if pod.Status.StartTime != nil { // taken before
		if r := k.align(pod, nil); r != nil {
			slog.Warn("a pod that runs cannot have its resources for itself", "pod", podspec.Format(pod), "reason", r.reason, "err", r.message)
		}
		return nil, nil
	}
	a := &admission{k: k, pod: pod}
	for _, w := range k.workers {
		// What the API no longer has takes no room, whatever is left of it here: the
		// scheduler has given its place away.
		if !w.isGone() && w.active() {
			a.others = append(a.others, w.shown.Load().pod)
		}
	}
	for _, h := range admitHandlers {
		if r := h.admit(a); r != nil {
			k.release(pod.UID)
			k.events.Event(podReference(pod), corev1.EventTypeWarning, r.reason, r.message)
			return nil, &ending{reason: r.reason, message: r.message, rejected: true}
		}
	}
	return a.preempt(), nil // not before it is certain that the pod is taken
}

// neverRuns says whether nothing of a pod is to be started, when it is first seen.
func neverRuns(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// predicates ask for room, the right node, ports and tolerations. A critical pod that only
// has no room takes that of others.
func (a *admission) predicates() *rejection {
	node := a.k.node.Load()
	if node == nil {
		return nil
	}
	if a.k.devices != nil {
		with := corev1.Node{ObjectMeta: node.ObjectMeta, Spec: node.Spec, Status: node.Status}
		with.Status.Allocatable = a.k.devices.Room(a.pod, a.others, node.Status.Allocatable)
		node = &with
	}
	if r := unsupported(a.pod, node); r != nil {
		return r
	}
	missing, misfits := short(a.pod, a.others, node), misfits(a.pod, a.others, node)
	switch {
	case len(missing) > 0 && !podspec.IsCritical(a.pod):
		return missing[0].rejection()
	case len(misfits) > 0:
		return misfits[0]
	case len(missing) == 0:
		return nil
	}
	for _, s := range missing {
		a.missing = append(a.missing, preemption.Requirement{Resource: s.name, Quantity: s.requested - (s.capacity - s.used)})
	}
	var err error
	if a.victims, err = preemption.Victims(a.others, a.missing, func(other *corev1.Pod) bool { return comesBefore(a.pod, other) }); err != nil {
		return &rejection{"UnexpectedAdmissionError", fmt.Sprintf("Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: %v", err)}
	}
	return nil
}

// A victim is a pod that goes for a critical one, which waits for it until then.
type victim struct {
	w     *worker
	until time.Time
	first bool // it goes for this pod, and did not before
}

// preempt ends the pods that have the room which a critical one needs, and opens it when they
// have ended or had their time to.
func (a *admission) preempt() (room *gate) {
	const message = "Preempted in order to admit critical pod"
	k, victims := a.k, []victim(nil)
	for _, v := range a.victims {
		w := k.workers[v.UID]
		if w == nil {
			continue
		}
		first := w.end(&ending{reason: "Preempting", message: message, disruption: corev1.PodReasonTerminationByKubelet,
			why: "Pod was preempted by Kubelet to accommodate a critical pod."})
		if first {
			slog.Info("preempting pod", "pod", podspec.Format(v), "for", podspec.Format(a.pod))
			k.events.Event(podReference(v), corev1.EventTypeWarning, "Preempting", message)
		}
		victims = append(victims, victim{w, time.Now().Add(killTime(graceOf(v, nil))), first})
	}
	if len(victims) == 0 {
		return nil
	}
	room = newGate()
	k.wg.Go("kubelet: preempted pods", func() {
		defer k.pokePod(a.pod.UID)
		defer room.open()
		a.awaitVictims(victims)
	})
	return room
}

// awaitVictims waits until victims have ended, and counts those that did in their time.
func (a *admission) awaitVictims(victims []victim) {
	for _, v := range victims {
		switch v.w.over.waitFor(a.k.ctx, time.Until(v.until)); {
		case a.k.ctx.Err() != nil:
			return
		case !v.w.over.isOpen():
			slog.Warn("a preempted pod has not ended in its time", "pod", podspec.Format(v.w.shown.Load().pod), "for", podspec.Format(a.pod))
		case v.first:
			a.k.metrics.preemptions.WithLabelValues(string(a.missing[0].Resource)).Inc()
		}
	}
}

// comesBefore says whether a pod may take the room of another.
func comesBefore(pod, other *corev1.Pod) bool {
	if podspec.IsCritical(pod) && !podspec.IsCritical(other) {
		return true
	}
	a, b := pod.Spec.Priority, other.Spec.Priority
	return a != nil && b != nil && *a > *b
}

// admitAppArmor refuses what would run without the profile that confines it.
func admitAppArmor(pod *corev1.Pod, enabled bool) *rejection {
	if enabled || !criconfig.NeedsAppArmor(pod) {
		return nil
	}
	return &rejection{"AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
}

// servedFeatures is the version whose features pods are taken to need.
var servedFeatures = version.MajorMinor(1, 36)

// admitFeatures refuses what needs a feature that this kubelet has not declared.
func admitFeatures(pod *corev1.Pod) *rejection {
	f := features.DefaultFramework
	needs, err := f.InferForPodScheduling(&features.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, servedFeatures)
	if err != nil {
		return &rejection{"PodFeatureUnsupported", fmt.Sprintf("Failed to infer pod's feature requirements: %v", err)}
	}
	if needs.IsEmpty() {
		return nil
	}
	match, err := f.MatchNodeFeatureSet(needs, f.TryMap(declaredFeatures))
	if err != nil {
		return &rejection{"PodFeatureUnsupported", fmt.Sprintf("Failed to match pod's feature requirements against the node: %v", err)}
	}
	if !match.IsMatch {
		return &rejection{"PodFeatureUnsupported", "Pod requires node features that are not available: " + strings.Join(match.UnsatisfiedRequirements, ", ")}
	}
	return nil
}

func (a *admission) shutdown() *rejection {
	if !a.k.shuttingDown.Load() {
		return nil
	}
	return &rejection{"NodeShutdown", "Pod was rejected as the node is shutting down."}
}
