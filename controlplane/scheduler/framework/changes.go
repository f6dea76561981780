package framework

// A changeLog remembers which nodes changed lately, by slot.
type changeLog struct {
	start uint64 // the number of ring's oldest entry
	next  uint64
	ring  []int32
}

// Touch notes that a node, or what is on it, changed.
func (c *Cluster) Touch(n *Node) {
	l := &c.log
	if want := 1024 + 2*len(c.Nodes); len(l.ring) < want {
		bigger := make([]int32, 2*want)
		for i := l.start; i < l.next; i++ {
			bigger[i%uint64(len(bigger))] = l.ring[i%uint64(len(l.ring))]
		}
		l.ring = bigger
	}
	l.ring[l.next%uint64(len(l.ring))] = int32(n.Slot)
	l.next++
	if l.next-l.start > uint64(len(l.ring)) {
		l.start = l.next - uint64(len(l.ring))
	}
}

// Changes calls each for the slot of every node that changed since position,
// and returns the new position. It returns ok false, calling nothing, when it
// cannot say.
func (c *Cluster) Changes(position uint64, each func(slot int)) (now uint64, ok bool) {
	l := &c.log
	if position < l.start {
		return l.next, false
	}
	for i := position; i < l.next; i++ {
		each(int(l.ring[i%uint64(len(l.ring))]))
	}
	return l.next, true
}

// Now is the position of the present.
func (c *Cluster) Now() uint64 { return c.log.next }
