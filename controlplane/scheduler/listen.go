package scheduler

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/scheduler/framework"
	"knarr/internal/informer"
)

// listen feeds all changes to the term.
func (s *term) listen(f informers.SharedInformerFactory) (known []cache.DoneChecker, err error) {
	pods := f.InformerFor(&corev1.Pod{}, func(c kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return coreinformers.NewFilteredPodInformer(c, metav1.NamespaceAll, resync, cache.Indexers{}, func(o *metav1.ListOptions) {
			o.FieldSelector = "status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)
		})
	})
	on := func(inf cache.SharedIndexInformer, set func(old, obj any, now time.Time) (event string), gone func(obj any, now time.Time) (event string)) {
		guard := func(do func(now time.Time) string) {
			began := time.Now()
			s.mu.Lock()
			defer s.mu.Unlock()
			safely(s.ctx, func() {
				if event := do(time.Now()); event != "" {
					s.observe.handled(event, began)
				}
			})
		}
		reg, e := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { guard(func(now time.Time) string { return set(nil, obj, now) }) },
			UpdateFunc: func(old, obj any) { guard(func(now time.Time) string { return set(old, obj, now) }) },
			DeleteFunc: func(obj any) {
				guard(func(now time.Time) string { return gone(informer.Object(obj), now) })
			},
		})
		if e != nil {
			err = fmt.Errorf("events of %T: %w", inf, e)
			return
		}
		known = append(known, reg.HasSyncedChecker())
	}
	core := f.Core().V1()
	on(core.Nodes().Informer(), func(_, obj any, now time.Time) string { return s.setNode(obj.(*corev1.Node), now) },
		func(obj any, now time.Time) string {
			s.cluster.RemoveNode(obj.(*corev1.Node).Name)
			return "NodeDelete"
		})
	on(core.Namespaces().Informer(), func(_, obj any, now time.Time) string {
		n := obj.(*corev1.Namespace)
		if s.cluster.SetNamespace(n.Name, labels.Set(n.Labels)) {
			s.happened(&framework.Event{Action: framework.NamespaceLabels}, now)
		}
		return ""
	}, func(obj any, _ time.Time) string {
		s.cluster.RemoveNamespace(obj.(*corev1.Namespace).Name)
		return ""
	})
	on(pods, func(old, obj any, now time.Time) string {
		was, _ := old.(*corev1.Pod)
		s.setPod(obj.(*corev1.Pod), now)
		return s.podEvent(was, obj.(*corev1.Pod))
	}, func(obj any, now time.Time) string {
		s.removePod(obj.(*corev1.Pod), now)
		return s.podEvent(obj.(*corev1.Pod), nil)
	})
	changed := func(_, _ any, _ time.Time) string {
		s.selectors.revision++
		return ""
	}
	for _, inf := range s.selectors.informers {
		on(inf, changed, func(obj any, now time.Time) string { return changed(obj, nil, now) })
	}
	for _, inf := range s.storage.informers {
		on(inf, func(old, obj any, now time.Time) string { return s.storageChanged(old, obj, false, now) },
			func(obj any, now time.Time) string { return s.storageChanged(nil, obj, true, now) })
	}
	on(f.Policy().V1().PodDisruptionBudgets().Informer(), func(_, _ any, _ time.Time) string { return "" }, func(any, time.Time) string { return "" })
	return known, err
}

// verb is what became of an object that is there.
func verb(old any) string {
	if old == nil {
		return "Add"
	}
	return "Update"
}

// podEvent is what upstream calls a change of a pod; old or now is nil.
func (s *term) podEvent(old, now *corev1.Pod) string {
	switch {
	case now == nil && old.Spec.NodeName != "":
		return "AssignedPodDelete"
	case now == nil && s.ours(old):
		return "UnschedulablePodDelete"
	case now == nil:
		return ""
	case now.Spec.NodeName != "" && (old == nil || old.Spec.NodeName == ""):
		return "AssignedPodAdd"
	case now.Spec.NodeName != "":
		return "AssignedPodUpdate"
	case !s.ours(now):
		return ""
	case old == nil:
		return podAdded
	}
	return podUpdated
}

func (s *term) setNode(o *corev1.Node, now time.Time) (event string) {
	var old *corev1.Node
	if n := s.cluster.Node(o.Name); n != nil {
		old = n.Object
	}
	did := s.cluster.SetNode(o)
	if did == 0 {
		return ""
	}
	e := &framework.Event{Action: did, OldNode: old, Node: o}
	s.happened(e, now)
	return e.Label()
}

func (s *term) setPod(o *corev1.Pod, now time.Time) {
	switch placed := s.cluster.Pod(o.UID); {
	case o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed:
		s.removePod(o, now)
	case o.Spec.NodeName != "":
		if q := s.queue.pods[o.UID]; q != nil {
			s.unqueue(q)
		}
		s.setPlaced(placed, o, now)
	case placed != nil: // assumed, and still on its way
	case s.queue.pods[o.UID] != nil:
		s.setWaiting(s.queue.pods[o.UID], o, now)
	case s.ours(o) && o.DeletionTimestamp == nil:
		p := s.cluster.NewPod(o)
		q := s.queue.add(p, now, s.held(o))
		s.nominate(q, o.Status.NominatedNodeName)
		s.wake()
	}
}

// held is the plugin that keeps the pod from being tried.
func (s *term) held(o *corev1.Pod) (plugin string) {
	began, status := time.Now(), framework.Success
	for _, g := range s.core.gates {
		if st := g.PreEnqueue(o); st != nil {
			plugin, status = st.Plugin, st.Code
			break
		}
	}
	s.observe.profile(o.Spec.SchedulerName).observe(preEnqueue, status, time.Since(began))
	return plugin
}

func (s *term) unqueue(q *queued) {
	s.unnominate(q)
	s.queue.remove(q)
	s.cluster.Release(q.Pod)
}

// setPlaced notes a pod that has a node.
func (s *term) setPlaced(old *framework.Pod, o *corev1.Pod, now time.Time) {
	p := s.cluster.NewPod(o)
	if old == nil {
		s.cluster.Place(p, o.Spec.NodeName)
		s.happened(&framework.Event{Action: framework.PodPlaced, Pod: p}, now)
		return
	}
	delete(s.assumed, old)
	if old.Shape == p.Shape && old.Node.Name == o.Spec.NodeName && old.Terminating() == p.Terminating() {
		old.Pod = o // nothing that matters
		s.cluster.Release(p)
		return
	}
	was := *old
	s.cluster.Displace(old)
	s.cluster.Place(p, o.Spec.NodeName)
	var did framework.Action
	if !labels.Equals(was.Shape.Labels, p.Shape.Labels) || was.Terminating() != p.Terminating() {
		did |= framework.PodLabels
	}
	for i, a := range was.Asks {
		if p.Asks.At(i) < a {
			did |= framework.PodScaledDown
		}
	}
	if did != 0 {
		s.happened(&framework.Event{Action: did, Pod: p, Old: &was}, now)
	}
	s.cluster.Release(old)
}

// setWaiting notes a change to a pod that has no node.
func (s *term) setWaiting(q *queued, o *corev1.Pod, now time.Time) {
	if o.DeletionTimestamp != nil {
		s.unqueue(q)
		return
	}
	p, heldBy := s.cluster.NewPod(o), s.held(o)
	if q.Shape == p.Shape && (q.where == gated) == (heldBy != "") {
		s.cluster.Release(p)
		q.Pod.Pod = o
		return
	}
	nominated := q.nominated
	s.unnominate(q)
	old := q.Pod
	q.Pod = p
	s.nominate(q, nominated)
	s.cluster.Release(old)
	switch {
	case heldBy != "" && q.where != gated:
		s.queue.hold(q, heldBy, podUpdated)
	case heldBy == "" && q.where == gated:
		s.queue.activate(q, podUngated, now)
	case q.where == active: // its priority may have changed
		s.queue.reorder(q)
	case q.where == waiting:
		e := &framework.Event{Action: framework.PodSelf, Pod: p}
		for _, name := range q.refusers() {
			if h := s.core.hint(name); h == nil || h(e, p) {
				s.queue.wake(q, podUpdated, now)
				break
			}
		}
	}
	s.wake()
}

func (s *term) removePod(o *corev1.Pod, now time.Time) {
	if q := s.queue.pods[o.UID]; q != nil {
		nominated := q.nominated != ""
		s.unqueue(q)
		if nominated { // others may have held back for it
			s.happened(&framework.Event{Action: framework.PodGone, Pod: q.Pod}, now)
		}
		return
	}
	p := s.cluster.Pod(o.UID)
	if p == nil {
		return
	}
	delete(s.assumed, p)
	s.cluster.Displace(p)
	s.happened(&framework.Event{Action: framework.PodGone, Pod: p}, now)
	s.cluster.Release(p)
}
