package framework

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/equal"
)

// A Cluster is all nodes and placed pods, with sums kept up to date at every
// change so that no plugin has to walk the pods.
type Cluster struct {
	// Nodes by slot; a slot's node may be nil, or lack its Object.
	Nodes []*Node
	// Live counts the nodes that have an Object.
	Live int
	// Avoided counts the nodes with taints of preference.
	Avoided int
	// Revision grows whenever nodes come, go or change their labels.
	Revision uint64
	// Nominations counts pods nominated to nodes.
	Nominations int

	names      map[string]*Node
	free       []int
	pods       map[types.UID]*Pod
	shapes     map[string]*Shape
	resources  *resourceTable
	topologies map[string]*Topology
	nodeLabels map[string]int // how many nodes have a label with that key
	tallies    tallies
	owners     owners
	images     map[string]*Image
	namespaces map[string]labels.Set
	claims     map[claimKey][]claimUse
	placed     placed
	log        changeLog
}

type claimKey struct{ namespace, name string }

// NewCluster is a cluster of nothing.
func NewCluster() *Cluster {
	return &Cluster{
		Revision: 1,
		names:    map[string]*Node{}, pods: map[types.UID]*Pod{}, shapes: map[string]*Shape{},
		resources: newResourceTable(), topologies: map[string]*Topology{}, nodeLabels: map[string]int{},
		tallies: newTallies(), owners: newOwners(),
		images: map[string]*Image{}, namespaces: map[string]labels.Set{},
		claims: map[claimKey][]claimUse{}, placed: placed{},
	}
}

// Insufficient is what a node is refused with that lacks the resource with that index.
func (c *Cluster) Insufficient(i int) string { return c.resources.lacks[i] }

// Node finds a node by name.
func (c *Cluster) Node(name string) *Node { return c.names[name] }

// Pod finds a placed pod.
func (c *Cluster) Pod(uid types.UID) *Pod { return c.pods[uid] }

// Placed counts the pods that have a node.
func (c *Cluster) Placed() int { return len(c.pods) }

// NamespaceLabels are those of a namespace.
func (c *Cluster) NamespaceLabels(name string) labels.Set { return c.namespaces[name] }

func (c *Cluster) slot(name string) *Node {
	if n := c.names[name]; n != nil {
		return n
	}
	n := &Node{Name: name, Used: make(Resources, firstExtended)}
	if last := len(c.free) - 1; last >= 0 {
		n.Slot = c.free[last]
		c.free = c.free[:last]
		c.Nodes[n.Slot] = n
	} else {
		n.Slot = len(c.Nodes)
		c.Nodes = append(c.Nodes, n)
	}
	c.names[name] = n
	return n
}

func (c *Cluster) vacate(n *Node) {
	if n.Object != nil || len(n.Pods) > 0 || len(n.Nominated) > 0 {
		return
	}
	delete(c.names, n.Name)
	c.Nodes[n.Slot] = nil
	c.free = append(c.free, n.Slot)
	c.Revision++
}

// SetNode adds or changes a node, and says in what way.
func (c *Cluster) SetNode(o *corev1.Node) Action {
	n := c.slot(o.Name)
	old := n.Object
	n.Object = o
	allocatable := c.allocatable(o.Status.Allocatable)
	var did Action
	switch {
	case old == nil:
		c.Live++
		did = NodeAdded
	default:
		if !slices.Equal(allocatable, n.Allocatable) {
			did |= NodeAllocatable
		}
		if !equal.Objects(old.Labels, o.Labels) {
			did |= NodeLabels
		}
		if old.Spec.Unschedulable != o.Spec.Unschedulable || !equal.Objects(old.Spec.Taints, o.Spec.Taints) {
			did |= NodeTaints
		}
		if !equal.Objects(old.Annotations, o.Annotations) || !equal.Objects(old.Status.DeclaredFeatures, o.Status.DeclaredFeatures) {
			did |= NodeUpdated
		}
	}
	n.Allocatable = allocatable
	n.Features = declared(o)
	if did&(NodeAdded|NodeTaints) != 0 {
		c.countAvoids(n)
	}
	if did&(NodeAdded|NodeLabels) != 0 {
		c.Revision++
		var had map[string]string
		if old != nil {
			had = old.Labels
		}
		c.relabel(n, had)
	}
	c.setImages(n, old, o)
	if did != 0 {
		c.Touch(n)
	}
	return did
}

func (c *Cluster) countAvoids(n *Node) {
	if n.Avoids > 0 {
		c.Avoided--
	}
	n.Avoids = 0
	if n.Object == nil {
		return
	}
	for i := range n.Object.Spec.Taints {
		if n.Object.Spec.Taints[i].Effect == corev1.TaintEffectPreferNoSchedule {
			n.Avoids++
		}
	}
	if n.Avoids > 0 {
		c.Avoided++
	}
}

// RemoveNode forgets a node; pods said to be on it stay.
func (c *Cluster) RemoveNode(name string) {
	n := c.names[name]
	if n == nil || n.Object == nil {
		return
	}
	old := n.Object
	c.setImages(n, old, nil)
	n.Object = nil
	n.Allocatable = nil
	c.countAvoids(n)
	c.Live--
	c.Revision++
	c.relabel(n, old.Labels)
	c.Touch(n)
	c.vacate(n)
}

// Place puts a pod on a node, whether or not the node is known.
func (c *Cluster) Place(p *Pod, node string) {
	n := c.slot(node)
	n.place(p)
	c.pods[p.UID] = p
	c.placed.add(p)
	c.tallies.count(c, p, 1)
	c.owners.count(p, 1)
	c.useClaims(p, n, 1)
	c.Touch(n)
}

// Displace takes a placed pod off its node.
func (c *Cluster) Displace(p *Pod) {
	n := p.Node
	c.tallies.count(c, p, -1)
	c.owners.count(p, -1)
	c.useClaims(p, n, -1)
	n.displace(p)
	delete(c.pods, p.UID)
	c.placed.remove(p)
	c.Touch(n)
	c.vacate(n)
}

// Nominate notes that a waiting pod has made room on a node.
func (c *Cluster) Nominate(p *Pod, node string) {
	n := c.slot(node)
	n.Nominated = append(n.Nominated, p)
	c.Nominations++
}

// Unnominate takes the note back.
func (c *Cluster) Unnominate(p *Pod, node string) {
	n := c.names[node]
	if n == nil {
		return
	}
	if i := slices.Index(n.Nominated, p); i >= 0 {
		n.Nominated = slices.Delete(n.Nominated, i, i+1)
		c.Nominations--
		c.vacate(n)
	}
}

// SetNamespace notes a namespace's labels and reports whether they changed.
func (c *Cluster) SetNamespace(name string, l labels.Set) bool {
	if old, ok := c.namespaces[name]; ok && labels.Equals(old, l) {
		return false
	}
	c.namespaces[name] = l
	c.tallies.recount(c)
	c.owners.revision++
	return true
}

// RemoveNamespace forgets a namespace.
func (c *Cluster) RemoveNamespace(name string) { delete(c.namespaces, name) }

// A claimUse is how many placed pods of a node use a claim.
type claimUse struct {
	node *Node
	pods int
}

// useClaims counts a pod of a node in or out.
func (c *Cluster) useClaims(p *Pod, n *Node, delta int) {
	for _, name := range p.Claims {
		k := claimKey{p.Shape.Namespace, name}
		uses := c.claims[k]
		i := slices.IndexFunc(uses, func(u claimUse) bool { return u.node == n })
		switch {
		case i < 0:
			c.claims[k] = append(uses, claimUse{n, delta})
			continue
		case uses[i].pods+delta > 0:
			uses[i].pods += delta
			continue
		}
		if uses = slices.Delete(uses, i, i+1); len(uses) == 0 {
			delete(c.claims, k)
		} else {
			c.claims[k] = uses
		}
	}
}

// ClaimInUse reports whether a placed pod uses a claim.
func (c *Cluster) ClaimInUse(namespace, name string) bool {
	return len(c.claims[claimKey{namespace, name}]) > 0
}

// TouchUsers notes that the nodes whose pods use a claim changed.
func (c *Cluster) TouchUsers(namespace, name string) {
	for _, u := range c.claims[claimKey{namespace, name}] {
		c.Touch(u.node)
	}
}
