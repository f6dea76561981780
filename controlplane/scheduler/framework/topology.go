package framework

// A Topology divides the nodes by the value of one label.
type Topology struct {
	// Domain is each slot's domain, -1 for nodes without the label.
	Domain []int32
	// Size is one more than the greatest domain.
	Size   int
	values map[string]int32
}

// Topology is the division by a label. It is kept up to date from then on.
func (c *Cluster) Topology(key string) *Topology {
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

func (t *Topology) set(n *Node, key string) {
	for len(t.Domain) <= n.Slot {
		t.Domain = append(t.Domain, -1)
	}
	t.Domain[n.Slot] = -1
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
	t.Domain[n.Slot] = d
}

// Of is the domain of a node, or -1.
func (t *Topology) Of(n *Node) int32 {
	if n.Slot < len(t.Domain) {
		return t.Domain[n.Slot]
	}
	return -1
}
