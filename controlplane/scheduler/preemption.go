package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/scheduler/framework"
)

// As many nodes are tried for preemption: this many, or this share if more.
const (
	fewestCandidates      = 100
	candidatesPerHundred  = 10
	reasonNoVictims       = "No preemption victims found for incoming pod"
	reasonPreemptionWaste = "Preemption is not helpful for scheduling"
)

// A candidate is a node and the pods that would have to go from it.
type candidate struct {
	node    *framework.Node
	victims []*framework.Pod // the most important first
	broken  int              // how many budgets' limits it breaks
}

// preempt looks for the node where making room for the pod does least harm. It
// follows decide about the same pod. Without a candidate it says why.
func (s *core) preempt(p *framework.Pod, why *refusal, budgets []budget) (*candidate, string) {
	failed := refusal{nodes: why.nodes, reasons: map[string]int{}}
	var resolvable []*framework.Node
	if why.before == nil {
		for slot, n := range s.cluster.Nodes {
			if n != nil && n.Object != nil && s.refusals[slot].Code == framework.Unschedulable {
				resolvable = append(resolvable, n)
			}
		}
	}
	if rest := why.nodes - len(resolvable); rest > 0 {
		failed.reasons[reasonPreemptionWaste] = rest
	}
	most := max(len(resolvable)*candidatesPerHundred/100, fewestCandidates)
	var found []candidate
	if len(resolvable) > 0 {
		from := rand.IntN(len(resolvable))
		for i := range resolvable {
			c, st := s.victimsOn(p, resolvable[(from+i)%len(resolvable)], budgets)
			if st != nil {
				for _, r := range st.Reasons {
					failed.reasons[r]++
				}
				continue
			}
			if found = append(found, c); len(found) == most {
				break
			}
		}
	}
	if len(found) == 0 {
		return nil, failed.String()
	}
	return leastHarm(found), ""
}

var noVictims = framework.Refuse(framework.Unresolvable, "DefaultPreemption", reasonNoVictims)

// victimsOn finds as few and as unimportant pods as possible whose going from
// the node lets the pod in.
func (s *core) victimsOn(p *framework.Pod, n *framework.Node, budgets []budget) (candidate, *framework.Status) {
	var lesser []*framework.Pod
	for _, o := range n.Pods {
		if o.Shape.Priority < p.Shape.Priority {
			lesser = append(lesser, o)
		}
	}
	if len(lesser) == 0 {
		return candidate{}, noVictims
	}
	trial := n.Copy()
	count := func(o *framework.Pod, delta int32) {
		if delta > 0 {
			trial.With(o)
		} else {
			trial.Without(o)
		}
		s.simulate(p, o, n, delta)
	}
	fits := func() *framework.Status {
		if len(trial.Nominated) > 0 {
			if st := s.withNominated(p, trial); st != nil {
				return st
			}
		}
		return s.fits(p, trial)
	}
	for _, o := range lesser {
		count(o, -1)
	}
	c := candidate{node: n}
	if st := fits(); st != nil {
		for _, o := range lesser {
			count(o, 1)
		}
		return c, st
	}
	spared := func() bool {
		return (len(trial.Nominated) == 0 || s.withNominated(p, trial) == nil) && s.hasRoom(p, trial)
	}
	slices.SortStableFunc(lesser, byImportance)
	guarded, free := split(lesser, budgets)
	spare := func(o *framework.Pod) bool {
		count(o, 1)
		if spared() {
			return true
		}
		count(o, -1)
		c.victims = append(c.victims, o)
		return false
	}
	for _, o := range guarded {
		if !spare(o) {
			c.broken++
		}
	}
	for _, o := range free {
		spare(o)
	}
	for _, o := range c.victims {
		count(o, 1)
	}
	slices.SortStableFunc(c.victims, byImportance)
	return c, nil
}

// byImportance puts higher priority first, then what has run longer.
func byImportance(a, b *framework.Pod) int {
	if a.Shape.Priority != b.Shape.Priority {
		return int(int64(b.Shape.Priority) - int64(a.Shape.Priority))
	}
	return a.Started().Compare(b.Started())
}

// A budget is a PodDisruptionBudget and its selector.
type budget struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
}

// budgetsOf parses; what selects nothing is left out.
func budgetsOf(list []any) (all []budget) {
	for _, o := range list {
		b := o.(*policyv1.PodDisruptionBudget)
		if sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && !sel.Empty() {
			all = append(all, budget{b, sel})
		}
	}
	return all
}

// split tells the pods whose going breaks a budget from the others.
func split(pods []*framework.Pod, budgets []budget) (guarded, free []*framework.Pod) {
	if len(budgets) == 0 {
		return nil, pods
	}
	left := make([]int32, len(budgets))
	for i, b := range budgets {
		left[i] = b.Status.DisruptionsAllowed
	}
	for _, p := range pods {
		broken := false
		for i, b := range budgets {
			if b.Namespace != p.Shape.Namespace || len(p.Shape.Labels) == 0 || !b.selector.Matches(p.Shape.Labels) {
				continue
			}
			if _, gone := b.Status.DisruptedPods[p.Pod.Name]; gone {
				continue
			}
			if left[i]--; left[i] < 0 {
				broken = true
			}
		}
		if broken {
			guarded = append(guarded, p)
		} else {
			free = append(free, p)
		}
	}
	return guarded, free
}

// leastHarm compares, in this order: budgets broken, the most important
// victim, the sum of priorities, the number of victims, and how lately the
// most important of them started.
func leastHarm(list []candidate) *candidate {
	measures := []func(c *candidate) int64{
		func(c *candidate) int64 { return int64(c.broken) },
		func(c *candidate) int64 {
			if len(c.victims) == 0 {
				return math.MinInt64
			}
			return int64(c.victims[0].Shape.Priority)
		},
		func(c *candidate) (sum int64) {
			for _, v := range c.victims {
				sum += int64(v.Shape.Priority) + math.MaxInt32 + 1
			}
			return sum
		},
		func(c *candidate) int64 { return int64(len(c.victims)) },
		func(c *candidate) int64 {
			var first time.Time
			for _, v := range c.victims {
				if t := v.Started(); v.Shape.Priority == c.victims[0].Shape.Priority && (first.IsZero() || t.Before(first)) {
					first = t
				}
			}
			return -first.UnixNano()
		},
	}
	left := make([]*candidate, len(list))
	for i := range list {
		left[i] = &list[i]
	}
	for _, m := range measures {
		if len(left) == 1 {
			break
		}
		least := int64(math.MaxInt64)
		var keep []*candidate
		for _, c := range left {
			switch v := m(c); {
			case v < least:
				least, keep = v, append(keep[:0:0], c)
			case v == least:
				keep = append(keep, c)
			}
		}
		left = keep
	}
	return left[0]
}

// ineligible says why a pod may not preempt others, or nothing.
func (s *core) ineligible(p *framework.Pod, nominated string, ordered func(*framework.Pod) bool) string {
	if pp := p.Pod.Spec.PreemptionPolicy; pp != nil && *pp == corev1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	n := s.cluster.Node(nominated)
	if n == nil || n.Object == nil {
		return ""
	}
	if st := s.refusals[n.Slot]; st != nil && st.Code == framework.Unresolvable {
		return ""
	}
	for _, o := range n.Pods {
		if o.Shape.Priority < p.Shape.Priority && (ordered(o) || preempted(o.Pod)) {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
}

// preempted reports whether the pod is going because it was preempted.
func preempted(p *corev1.Pod) bool {
	if p.DeletionTimestamp == nil {
		return false
	}
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.DisruptionTarget {
			return c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
		}
	}
	return false
}

// makeRoom has pods deleted whose going lets the pod in. It returns the node
// to nominate, nil to leave that as it is, and completes the refusal.
func (s *term) makeRoom(q *queued, why *refusal) (nominate *string) {
	preemptionAttempts.Inc()
	began, status := s.core.cycle.at, framework.Unschedulable
	defer func() {
		s.core.cycle.end(postFilter, status)
		if s.core.cycle.sampled() {
			pluginTook.WithLabelValues("DefaultPreemption", pointNames[postFilter], status.String()).Observe(s.core.cycle.at.Sub(began).Seconds())
		}
	}()
	const prefix = "no new claims to deallocate, preemption: "
	if len(s.core.refusals) != len(s.cluster.Nodes) {
		s.core.refusals = make([]*framework.Status, len(s.cluster.Nodes))
	}
	ordered := func(o *framework.Pod) bool { return slices.Contains(q.victims, o.UID) }
	if not := s.core.ineligible(q.Pod, q.nominated, ordered); not != "" {
		why.after = prefix + not
		return nil
	}
	best, not := s.core.preempt(q.Pod, why, budgetsOf(s.budgets.List()))
	if best == nil {
		why.after = prefix + not
		s.unnominate(q)
		return new("")
	}
	status = framework.Success
	s.evict(q, best)
	s.nominate(q, best.node.Name)
	return &best.node.Name
}

// evict starts deleting the victims, and takes the node from less important
// pods that had it in view.
func (s *term) evict(q *queued, c *candidate) {
	for _, o := range slices.Clone(c.node.Nominated) {
		other := s.queue.pods[o.UID]
		if other == nil || o.Shape.Priority >= q.Shape.Priority {
			continue
		}
		s.unnominate(other)
		pod := o.Pod
		s.writes.do(s.ctx, o.UID, func(ctx context.Context) { s.patchStatus(ctx, pod, map[string]any{"nominatedNodeName": nil}) })
	}
	q.victims = q.victims[:0]
	preemptor, node := q.Pod.Pod, c.node.Name
	for _, v := range c.victims {
		if v.Terminating() {
			continue
		}
		q.victims = append(q.victims, v.UID)
		victim := v.Pod
		s.writes.do(s.ctx, v.UID, func(ctx context.Context) {
			if err := s.delete(ctx, victim, preemptor, node); err != nil && ctx.Err() == nil {
				slog.WarnContext(ctx, "preemption", "err", err)
				s.spared(q, victim.UID)
			}
		})
	}
	if len(q.victims) > 0 { // else all are on their way already
		preemptionVictims.Observe(float64(len(c.victims)))
	}
}

// spared has the preemptor tried again, because a victim could not be deleted.
func (s *term) spared(q *queued, victim types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.victims = slices.DeleteFunc(q.victims, func(u types.UID) bool { return u == victim })
	if s.queue.pods[q.UID] == q {
		s.queue.wake(q, activated, time.Now())
		s.wake()
	}
}

// delete marks and deletes a victim.
func (s *term) delete(ctx context.Context, victim, preemptor *corev1.Pod, node string) error {
	err := s.patchStatus(ctx, victim, map[string]any{"conditions": []any{map[string]any{
		"type": corev1.DisruptionTarget, "status": corev1.ConditionTrue, "reason": corev1.PodReasonPreemptionByScheduler,
		"message":            preemptor.Spec.SchedulerName + ": preempting to accommodate a higher priority pod",
		"lastTransitionTime": metav1.Now(), "lastProbeTime": nil, "observedGeneration": victim.Generation,
	}}})
	if err == nil {
		err = s.client.CoreV1().Pods(victim.Namespace).Delete(ctx, victim.Name, *metav1.NewPreconditionDeleteOptions(string(victim.UID)))
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("preempt %s/%s: %w", victim.Namespace, victim.Name, err)
	}
	s.events[preemptor.Spec.SchedulerName].Eventf(victim, preemptor, corev1.EventTypeNormal, "Preempted", "Preempting", "Preempted by pod %v on node %v", preemptor.UID, node)
	return nil
}
