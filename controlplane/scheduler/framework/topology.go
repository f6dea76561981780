package framework

// A Topology divides the nodes by the value of one label.
type Topology struct {
	// domain is each slot's domain, -1 for nodes without the label. It may end
	// before the slots of nodes that only pods tell of.
	domain []int32
	// Size is one more than the greatest domain.
	Size   int
	values map[string]int32
}

// undivided is the topology of labels that no node has.
var undivided = &Topology{}

// Topology is the division by a label. It is kept up to date from then on, for as
// long as some node has the label: pods name any, and none of those is kept for them.
func (c *Cluster) Topology(key string) *Topology {
	if c.nodeLabels[key] == 0 {
		return undivided
	}
	t, ok := c.topologies[key]
	if !ok {
		t = &Topology{values: map[string]int32{}}
		c.topologies[key] = t
		for _, n := range c.Nodes {
			if n != nil {
				t.set(n, key)
			}
		}
	}
	return t
}

// relabel brings the topologies up to date with a node whose labels were old.
func (c *Cluster) relabel(n *Node, old map[string]string) {
	if n.Object != nil {
		for key := range n.Object.Labels {
			c.nodeLabels[key]++
		}
	}
	for key := range old {
		if c.nodeLabels[key]--; c.nodeLabels[key] == 0 {
			delete(c.nodeLabels, key)
			delete(c.topologies, key)
		}
	}
	for key, t := range c.topologies {
		t.set(n, key)
	}
}

func (t *Topology) set(n *Node, key string) {
	for len(t.domain) <= n.Slot {
		t.domain = append(t.domain, -1)
	}
	t.domain[n.Slot] = -1
	if n.Object == nil {
		return
	}
	v, ok := n.Object.Labels[key]
	if !ok {
		return
	}
	d, ok := t.values[v]
	if !ok {
		d = int32(t.Size)
		t.values[v] = d
		t.Size++
	}
	t.domain[n.Slot] = d
}

// Of is the domain of a node, or -1.
func (t *Topology) Of(n *Node) int32 { return t.At(int32(n.Slot)) }

// At is the domain of a slot, or -1.
func (t *Topology) At(slot int32) int32 {
	if int(slot) < len(t.domain) {
		return t.domain[slot]
	}
	return -1
}
