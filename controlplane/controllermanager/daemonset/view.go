package daemonset

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"knarr/controlplane/controllermanager/pods"
)

// A place is one node with the set's pods on it.
type place struct {
	node *corev1.Node
	// fits says that a pod should be there, stays that one that is may stay.
	fits, stays bool
	// live are the pods that have not ended, the oldest first.
	live []*corev1.Pod
	// old and fresh are the oldest pod of a former revision and of the
	// present one; ended are pods that will not run again.
	old, fresh *corev1.Pod
	ended      []*corev1.Pod
}

// A view is one DaemonSet and its pods, node by node.
type view struct {
	ds     *appsv1.DaemonSet
	hash   string
	now    time.Time
	places []*place
}

func (r *reconciler) view(ds *appsv1.DaemonSet, all []*corev1.Pod, hash string, now time.Time) *view {
	v := &view{ds: ds, hash: hash, now: now}
	by := map[string]*place{}
	probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ds.Namespace, Labels: ds.Spec.Template.Labels}, Spec: ds.Spec.Template.Spec}
	probe.Spec.Tolerations = tolerations(probe.Spec.Tolerations, probe.Spec.HostNetwork)
	affinity := nodeaffinity.GetRequiredNodeAffinity(probe)
	for _, obj := range r.nodes.List() {
		node := obj.(*corev1.Node)
		p := &place{node: node}
		p.fits, p.stays = fits(probe, affinity, node)
		by[node.Name] = p
		v.places = append(v.places, p)
	}
	slices.SortFunc(v.places, func(a, b *place) int { return cmp.Compare(a.node.Name, b.node.Name) })
	slices.SortFunc(all, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(unbound(a), unbound(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, pod := range all {
		p := by[target(pod)]
		switch {
		case p == nil: // the node is gone: its pods are the pod garbage collector's
		case pods.Terminal(pod) && pod.DeletionTimestamp == nil:
			p.ended = append(p.ended, pod)
		default:
			p.live = append(p.live, pod)
			switch {
			case v.updated(pod) && p.fresh == nil:
				p.fresh = pod
			case !v.updated(pod) && p.old == nil:
				p.old = pod
			}
		}
	}
	return v
}

func unbound(p *corev1.Pod) int {
	if p.Spec.NodeName == "" {
		return 1
	}
	return 0
}

// target is the node a pod is on or meant for.
func target(p *corev1.Pod) string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil || p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

func fits(pod *corev1.Pod, affinity nodeaffinity.RequiredNodeAffinity, node *corev1.Node) (run, stay bool) {
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		return false, false
	}
	if ok, err := affinity.Match(node); err != nil || !ok {
		return false, false
	}
	run, stay = true, true
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.ToleratesTaint(klog.Background(), taint, true)
		})
		if !tolerated {
			run = false
			stay = stay && taint.Effect != corev1.TaintEffectNoExecute
		}
	}
	return run, stay
}

// tolerations are those of the template and those every such pod has: it is to
// run on nodes in trouble too.
func tolerations(own []corev1.Toleration, hostNetwork bool) []corev1.Toleration {
	out := slices.Clone(own)
	add := func(key string, effect corev1.TaintEffect) {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
		i := slices.IndexFunc(out, func(have corev1.Toleration) bool { return have.MatchToleration(&t) })
		if i >= 0 {
			out[i] = t
			return
		}
		out = append(out, t)
	}
	add(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	if hostNetwork {
		add(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)
	}
	return out
}

const generationLabel = "pod-template-generation"

// updated says that a pod is of the present template.
func (v *view) updated(p *corev1.Pod) bool {
	if g := v.ds.Annotations[appsv1.DeprecatedTemplateGeneration]; g != "" && p.Labels[generationLabel] == g {
		return true
	}
	return v.hash != "" && p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == v.hash
}

func (v *view) available(p *corev1.Pod) bool {
	return p != nil && p.DeletionTimestamp == nil && pods.Available(p, v.ds.Spec.MinReadySeconds, v.now)
}

// pod is the one for a node.
func (v *view) pod(node string, ref *metav1.OwnerReference) *corev1.Pod {
	p := pods.FromTemplate(&v.ds.Spec.Template, v.ds, ref)
	p.Spec.Tolerations = tolerations(p.Spec.Tolerations, p.Spec.HostNetwork)
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = v.hash
	if g := v.ds.Annotations[appsv1.DeprecatedTemplateGeneration]; g != "" {
		p.Labels[generationLabel] = g
	}
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	if p.Spec.Affinity.NodeAffinity == nil {
		p.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	at := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}
	// The set has looked at all other terms already.
	p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{at}}
	return p
}

// ended are pods that ended where one should run.
func (v *view) ended() (out []*corev1.Pod) {
	for _, p := range v.places {
		if p.stays {
			out = append(out, p.ended...)
		}
	}
	return out
}

func (v *view) limits() (surge, unavailable int) {
	u := v.ds.Spec.UpdateStrategy.RollingUpdate
	if u == nil {
		return 0, 0
	}
	want := 0
	for _, p := range v.places {
		if p.fits {
			want++
		}
	}
	scaled := func(n *intstr.IntOrString) int {
		if n == nil {
			return 0
		}
		s, err := intstr.GetScaledValueFromIntOrPercent(n, want, true)
		if err != nil {
			return 0 // validation lets none through
		}
		return s
	}
	surge, unavailable = scaled(u.MaxSurge), scaled(u.MaxUnavailable)
	if want > 0 && surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

func (v *view) untilAvailable() (soonest time.Duration) {
	for _, place := range v.places {
		for _, p := range place.live {
			if left, ok := pods.AvailableIn(p, v.ds.Spec.MinReadySeconds, v.now); ok && left > 0 && (soonest == 0 || left < soonest) {
				soonest = left
			}
		}
	}
	return soonest
}
