package framework

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// A Term selects pods by labels and namespaces, and says within what domain.
type Term struct {
	TopologyKey string
	selects     digest // names what it selects
	size        int    // about how much memory it takes
	namespaces  []string
	spaces      labels.Selector // nil selects no further namespace
	selector    labels.Selector
}

// A digest names what is too long to be a name. Pods choose what it is of, and
// find no two that have the same.
type digest [sha256.Size]byte

func newTerm(namespace string, t *corev1.PodAffinityTerm) (*Term, error) {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("label selector: %w", err)
	}
	var spaces labels.Selector
	if t.NamespaceSelector != nil {
		if spaces, err = metav1.LabelSelectorAsSelector(t.NamespaceSelector); err != nil {
			return nil, fmt.Errorf("namespace selector: %w", err)
		}
	}
	names := t.Namespaces
	if len(names) == 0 && spaces == nil {
		names = []string{namespace}
	}
	return NewTerm(t.TopologyKey, slices.Sorted(slices.Values(names)), spaces, selector), nil
}

// NewTerm selects pods in the named namespaces, and in those that spaces (which
// may be nil) selects.
func NewTerm(topologyKey string, namespaces []string, spaces, selector labels.Selector) *Term {
	t := &Term{TopologyKey: topologyKey, namespaces: namespaces, spaces: spaces, selector: selector}
	selects := strings.Join(namespaces, ",") + "|" + selectorKey(selector)
	if spaces != nil {
		selects += "|" + selectorKey(spaces)
	}
	t.selects = sha256.Sum256([]byte(selects))
	t.size = 300 + len(topologyKey) + 4*len(selects)
	return t
}

// selectorKey tells the selector of everything from that of nothing, which
// print alike.
func selectorKey(s labels.Selector) string {
	if s.Empty() {
		return "*"
	}
	return s.String()
}

// Matches reports whether the term selects pods of that shape.
func (t *Term) Matches(s *Shape, c *Cluster) bool {
	if !slices.Contains(t.namespaces, s.Namespace) && (t.spaces == nil || !t.spaces.Matches(c.namespaces[s.Namespace])) {
		return false
	}
	return t.selector.Matches(s.Labels)
}

// bucket is a label ("key=value") that every pod the term selects has, or
// empty when there is none.
func (t *Term) bucket() string {
	reqs, _ := t.selector.Requirements()
	for _, r := range reqs {
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			if v := r.ValuesUnsorted(); len(v) == 1 {
				return r.Key() + "=" + v[0]
			}
		}
	}
	return ""
}
