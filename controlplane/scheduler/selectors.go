package scheduler

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/scheduler/framework"
)

// selectors finds the pods that belong together though they do not say so.
type selectors struct {
	services, controllers, sets, stateful cache.Indexer
	informers                             []cache.SharedIndexInformer
	revision                              uint64
}

func newSelectors(f informers.SharedInformerFactory) *selectors {
	s := &selectors{revision: 1, informers: []cache.SharedIndexInformer{
		f.Core().V1().Services().Informer(), f.Core().V1().ReplicationControllers().Informer(),
		f.Apps().V1().ReplicaSets().Informer(), f.Apps().V1().StatefulSets().Informer(),
	}}
	for i, dst := range []*cache.Indexer{&s.services, &s.controllers, &s.sets, &s.stateful} {
		*dst = s.informers[i].GetIndexer()
	}
	return s
}

// SelectorOf selects what all Services that select the pod, and its
// controller, select.
func (s *selectors) SelectorOf(p *framework.Shape) labels.Selector {
	if p.SiblingsRevision != s.revision {
		p.Siblings, p.SiblingsRevision = s.find(p), s.revision
	}
	return p.Siblings
}

func (s *selectors) find(p *framework.Shape) labels.Selector {
	equal := labels.Set{}
	services, _ := s.services.ByIndex(cache.NamespaceIndex, p.Namespace)
	for _, o := range services {
		sel := o.(*corev1.Service).Spec.Selector
		if len(sel) > 0 && labels.SelectorFromValidatedSet(sel).Matches(p.Labels) {
			for k, v := range sel {
				equal[k] = v
			}
		}
	}
	var more *metav1.LabelSelector
	key := p.Namespace + "/" + p.Owner.Name
	switch p.Owner.Kind {
	case "ReplicationController":
		if o, ok, _ := s.controllers.GetByKey(key); ok {
			for k, v := range o.(*corev1.ReplicationController).Spec.Selector {
				equal[k] = v
			}
		}
	case "ReplicaSet":
		if o, ok, _ := s.sets.GetByKey(key); ok {
			more = o.(*appsv1.ReplicaSet).Spec.Selector
		}
	case "StatefulSet":
		if o, ok, _ := s.stateful.GetByKey(key); ok {
			more = o.(*appsv1.StatefulSet).Spec.Selector
		}
	}
	all := labels.NewSelector()
	if len(equal) > 0 {
		all = labels.SelectorFromValidatedSet(equal)
	}
	if more != nil {
		if sel, err := metav1.LabelSelectorAsSelector(more); err == nil {
			reqs, _ := sel.Requirements()
			all = all.Add(reqs...)
		}
	}
	return all
}
