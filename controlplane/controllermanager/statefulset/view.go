package statefulset

import (
	"cmp"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/controllermanager/pods"
	"knarr/controlplane/controllermanager/revisions"
)

// A view is one StatefulSet and its pods by ordinal. Its status gathers what
// to store.
type view struct {
	set    *appsv1.StatefulSet
	now    time.Time
	status appsv1.StatefulSetStatus

	current, update                 *appsv1.ControllerRevision
	currentTemplate, updateTemplate *corev1.PodTemplateSpec
	// wanted is how many pods the set shall have, which may be more than memory has room
	// for; replicas are those of them that are there, by how far they are from the first
	// ordinal; condemned are the others, the lowest ordinal first.
	wanted    int
	replicas  map[int]*corev1.Pod
	condemned []*corev1.Pod
}

func (v *view) start() int {
	if o := v.set.Spec.Ordinals; o != nil {
		return int(o.Start)
	}
	return 0
}

// revise finds the revision that the rollout leaves.
func (v *view) revise(list []*appsv1.ControllerRevision, update *appsv1.ControllerRevision) (err error) {
	v.update, v.current = update, update
	for _, r := range list {
		if r.Name == v.set.Status.CurrentRevision {
			v.current = r
		}
	}
	v.updateTemplate = &v.set.Spec.Template
	v.currentTemplate = v.updateTemplate
	if v.current.Name != update.Name {
		v.currentTemplate, err = revisions.Template(v.current)
	}
	v.status.CurrentRevision, v.status.UpdateRevision = v.current.Name, v.update.Name
	return err
}

func (v *view) sort(all []*corev1.Pod) {
	v.wanted, v.replicas = int(*v.set.Spec.Replicas), map[int]*corev1.Pod{}
	for _, p := range all {
		switch n := ordinal(v.set, p); {
		case n < 0:
		case n >= v.start() && n < v.start()+v.wanted:
			v.replicas[n-v.start()] = p
		default:
			v.condemned = append(v.condemned, p)
		}
	}
	slices.SortFunc(v.condemned, func(a, b *corev1.Pod) int { return cmp.Compare(ordinal(v.set, a), ordinal(v.set, b)) })
}

// upTo are the replicas that are there and the first n that are not, in order.
func (v *view) upTo(n int) (list []int) {
	i := 0
	for ; i < v.wanted && n > 0; i++ {
		if v.replicas[i] == nil {
			n--
		}
		list = append(list, i)
	}
	for j := range v.replicas {
		if j >= i {
			list = append(list, j)
		}
	}
	slices.Sort(list)
	return list
}

// count writes what the pods are into the status.
func (v *view) count() {
	s := &v.status
	s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.CurrentReplicas, s.UpdatedReplicas = 0, 0, 0, 0, 0
	for _, p := range slices.AppendSeq(slices.Clone(v.condemned), maps.Values(v.replicas)) {
		if p.Status.Phase == "" {
			continue
		}
		s.Replicas++
		if running(p) {
			s.ReadyReplicas++
			if pods.Available(p, v.set.Spec.MinReadySeconds, v.now) {
				s.AvailableReplicas++
			}
		}
		if p.DeletionTimestamp != nil {
			continue
		}
		if v.revisionOf(p) == s.CurrentRevision {
			s.CurrentReplicas++
		}
		if v.revisionOf(p) == s.UpdateRevision {
			s.UpdatedReplicas++
		}
	}
	if v.rolling() && s.UpdatedReplicas == s.Replicas && s.ReadyReplicas == s.Replicas && s.Replicas == *v.set.Spec.Replicas {
		s.CurrentReplicas, s.CurrentRevision = s.UpdatedReplicas, s.UpdateRevision
	}
}

func (v *view) revisionOf(p *corev1.Pod) string { return p.Labels[appsv1.StatefulSetRevisionLabel] }

func (v *view) rolling() bool {
	return v.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType
}

// ordered says that pods come and go one after the other.
func (v *view) ordered() bool { return v.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement }

// running says that a pod runs and is ready.
func running(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && pods.Ready(p) }

// healthy says that the next pod may follow.
func (v *view) healthy(p *corev1.Pod) bool {
	return p != nil && running(p) && p.DeletionTimestamp == nil && pods.Available(p, v.set.Spec.MinReadySeconds, v.now)
}

// partition is the first ordinal, counted from the start, that is updated.
func (v *view) partition() int {
	if u := v.set.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Partition != nil {
		return int(*u.Partition)
	}
	return 0
}

// templateFor is the template and revision that a new pod gets.
func (v *view) templateFor(i int) (*corev1.PodTemplateSpec, string) {
	u := v.set.Spec.UpdateStrategy.RollingUpdate
	if v.rolling() && (u == nil && i < int(v.set.Status.CurrentReplicas) || u != nil && i < v.partition()) {
		return v.currentTemplate, v.current.Name
	}
	return v.updateTemplate, v.update.Name
}

// outdated is the pod that a rolling update deletes now, nil if there is none:
// the highest one of another revision, once those above it are well. Those below
// do not count: the update may be what mends them.
func (v *view) outdated() *corev1.Pod {
	if !v.rolling() {
		return nil
	}
	for i := v.wanted - 1; i >= v.partition(); i-- {
		p := v.replicas[i]
		if p != nil && v.revisionOf(p) != v.update.Name && p.DeletionTimestamp == nil {
			return p
		}
		if !v.healthy(p) {
			return nil
		}
	}
	return nil
}

func (v *view) untilAvailable(all []*corev1.Pod) (soonest time.Duration) {
	for _, p := range all {
		if left, ok := pods.AvailableIn(p, v.set.Spec.MinReadySeconds, v.now); ok && left > 0 && (soonest == 0 || left < soonest) {
			soonest = left
		}
	}
	return soonest
}
