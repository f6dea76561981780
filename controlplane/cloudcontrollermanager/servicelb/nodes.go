package servicelb

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// toBeDeleted is how the cluster autoscaler taints a node before it deletes it.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// A host is a node as load balancers see it: other changes of it are none to them.
type host struct{ name, providerID string }

// eligible reports whether load balancers may send to the node. Readiness is not
// asked for: the balancers' own checks are faster.
func eligible(n *corev1.Node) bool {
	return n.DeletionTimestamp.IsZero() && !excluded(n) &&
		!slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == toBeDeleted })
}

// excluded reports whether the node's label says so; a value that is no boolean does.
func excluded(n *corev1.Node) bool {
	value, ok := n.Labels[corev1.LabelNodeExcludeBalancers]
	if !ok {
		return false
	}
	on, err := strconv.ParseBool(value)
	return err != nil || on
}

// hosts counts the rounds of the nodes that load balancers send to.
type hosts struct {
	nodes cache.Indexer
	mu    sync.Mutex
	known map[string]host // the eligible ones, by name
	round uint64
}

// changed notes a node's event and reports whether it is one for load balancers. Its
// cost is that of one node.
func (h *hosts) changed(o metav1.Object) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	have, known := h.known[o.GetName()]
	obj, ok, err := h.nodes.GetByKey(o.GetName())
	node, _ := obj.(*corev1.Node)
	if err != nil || !ok || !eligible(node) {
		delete(h.known, o.GetName())
		if known {
			h.round++
		}
		return known
	}
	now := host{node.Name, node.Spec.ProviderID}
	if known && have == now {
		return false
	}
	h.known[node.Name] = now
	h.round++
	return true
}

func (h *hosts) now() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.round
}

// list gives the nodes that load balancers may send to, in the order of their names.
func (h *hosts) list() (nodes []*corev1.Node, as []host) {
	for _, o := range h.nodes.List() {
		if n := o.(*corev1.Node); eligible(n) {
			nodes = append(nodes, n.DeepCopy()) // for the provider, which must not touch the cache's
		}
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		as = append(as, host{n.Name, n.Spec.ProviderID})
	}
	return nodes, as
}

// shown are the names of nodes as a message has them: not all of many.
func shown(nodes []*corev1.Node) string {
	const most = 20
	names := make([]string, 0, most)
	for _, n := range nodes[:min(len(nodes), most)] {
		names = append(names, n.Name)
	}
	if more := len(nodes) - most; more > 0 {
		names = append(names, "<"+strconv.Itoa(more)+" more>")
	}
	return "[" + strings.Join(names, " ") + "]"
}
