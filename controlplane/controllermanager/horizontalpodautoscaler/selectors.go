package horizontalpodautoscaler

import (
	"cmp"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/tools/cache"
)

// selectors are those of the autoscalers' targets. They find pods that several
// autoscalers count without comparing each with each: a selector is filed under
// one label that it requires.
type selectors struct {
	mu     sync.Mutex
	filed  map[cache.ObjectName]label
	labels map[label]map[cache.ObjectName]labels.Selector
}

// A label of a namespace; without a key it stands for selectors that require no
// certain label.
type label struct{ namespace, key, value string }

func newSelectors() *selectors {
	return &selectors{filed: map[cache.ObjectName]label{}, labels: map[label]map[cache.ObjectName]labels.Selector{}}
}

// put files an autoscaler's selector, in place of the one it had.
func (s *selectors) put(autoscaler cache.ObjectName, selector labels.Selector) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(autoscaler)
	under := s.choose(autoscaler.Namespace, selector)
	s.filed[autoscaler] = under
	if s.labels[under] == nil {
		s.labels[under] = map[cache.ObjectName]labels.Selector{}
	}
	s.labels[under][autoscaler] = selector
}

// choose is the required label that the fewest others are filed under.
func (s *selectors) choose(namespace string, selector labels.Selector) label {
	best := label{namespace: namespace}
	requirements, _ := selector.Requirements()
	for _, r := range requirements {
		if op := r.Operator(); op != selection.Equals && op != selection.DoubleEquals && op != selection.In {
			continue
		}
		values := r.ValuesUnsorted()
		if len(values) != 1 {
			continue
		}
		if l := (label{namespace, r.Key(), values[0]}); best.key == "" || len(s.labels[l]) < len(s.labels[best]) {
			best = l
		}
	}
	return best
}

func (s *selectors) delete(autoscaler cache.ObjectName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(autoscaler)
}

func (s *selectors) remove(autoscaler cache.ObjectName) {
	under, ok := s.filed[autoscaler]
	if !ok {
		return
	}
	delete(s.filed, autoscaler)
	if delete(s.labels[under], autoscaler); len(s.labels[under]) == 0 {
		delete(s.labels, under)
	}
}

// selecting are the autoscalers that any of the namespace's pods belongs to, by
// name.
func (s *selectors) selecting(namespace string, pods []*corev1.Pod) []cache.ObjectName {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[cache.ObjectName]bool{}
	look := func(l label, pod labels.Set) {
		for name, selector := range s.labels[l] {
			if !found[name] && selector.Matches(pod) {
				found[name] = true
			}
		}
	}
	for _, pod := range pods {
		look(label{namespace: namespace}, pod.Labels)
		for k, v := range pod.Labels {
			look(label{namespace, k, v}, pod.Labels)
		}
	}
	names := make([]cache.ObjectName, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b cache.ObjectName) int { return cmp.Compare(a.Name, b.Name) })
	return names
}
