package endpointslice

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/controllermanager/pods"
)

// zones are the nodes as last seen. A node that comes after its pods, or is
// labelled later, changes the endpoints of all pods it has, and one that is ready
// or not the shares of the zones; most changes of a node are not of that kind.
type zones struct {
	mu     sync.Mutex
	of     map[string]share
	ratios map[string]float64 // nil until somebody asks
}

// A share is what of a node decides where endpoints are and whom they serve.
type share struct {
	zone string
	// counts says that the node's CPUs are some that its zone has for pods.
	counts bool
	milli  int64
}

func shareOf(node *corev1.Node) share {
	s := share{zone: node.Labels[corev1.LabelTopologyZone], milli: node.Status.Allocatable.Cpu().MilliValue()}
	for _, c := range node.Status.Conditions {
		s.counts = s.counts || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	for _, role := range []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"} {
		if _, ok := node.Labels[role]; ok {
			s.counts = false
		}
	}
	return s
}

// see remembers the node, nil if it is gone. It reports whether the node is in
// another zone than before, and whether the shares of the zones are others.
func (z *zones) see(name string, node *corev1.Node) (moved, shifted bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	was, known := z.of[name]
	if node == nil {
		delete(z.of, name) // its pods go too
		shifted = was.counts
	} else {
		is := shareOf(node)
		z.of[name] = is
		moved = is.zone != was.zone
		shifted = is != was && (is.counts || known && was.counts)
	}
	if shifted {
		z.ratios = nil
	}
	return moved, shifted
}

// shares are the parts that zones have of all CPUs; none if fewer than two zones
// have some, or if it is not known of some node.
func (z *zones) shares() map[string]float64 {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.ratios == nil {
		z.ratios = ratios(z.of)
	}
	return z.ratios
}

func ratios(of map[string]share) map[string]float64 {
	total, milli := int64(0), map[string]int64{}
	for _, s := range of {
		if !s.counts {
			continue
		}
		if s.zone == "" || s.milli == 0 {
			return map[string]float64{}
		}
		milli[s.zone] += s.milli
		total += s.milli
	}
	out := map[string]float64{}
	for zone, n := range milli {
		out[zone] = float64(n) / float64(total)
	}
	return out
}

// byTopology is the index of the Services that want hints by their annotation.
const byTopology = "knarr.topology"

func wantsTopology(obj any) ([]string, error) {
	if auto(obj.(*corev1.Service)) {
		return []string{"auto"}, nil
	}
	return nil, nil
}

// relocated names the Services behind which the pods of a node are, if its zone is
// another one now, and those that want hints by their annotation, if the shares of
// the zones are others. behind names those of a pod.
func (r *reconciler) relocated(behind func(metav1.Object) []cache.ObjectName) func(metav1.Object) []cache.ObjectName {
	return func(o metav1.Object) (keys []cache.ObjectName) {
		node, err := r.node(o.GetName())
		if err != nil {
			return nil
		}
		moved, shifted := r.zones.see(o.GetName(), node)
		if moved {
			list, err := pods.OnNode(r.pods, o.GetName())
			if err != nil {
				return nil
			}
			for _, p := range list {
				keys = append(keys, behind(p)...)
			}
		}
		if shifted {
			found, err := r.services.ByIndex(byTopology, "auto")
			if err != nil {
				return keys
			}
			for _, svc := range found {
				keys = append(keys, cache.MetaObjectToName(svc.(metav1.Object)))
			}
		}
		return keys
	}
}

// node is nil if there is none.
func (r *reconciler) node(name string) (*corev1.Node, error) {
	obj, ok, err := r.nodes.GetByKey(name)
	if err != nil || !ok {
		return nil, err
	}
	return obj.(*corev1.Node), nil
}

// zone is where a node is.
func (r *reconciler) zone(name string) string {
	node, err := r.node(name)
	if err != nil || node == nil {
		return ""
	}
	return node.Labels[corev1.LabelTopologyZone]
}
