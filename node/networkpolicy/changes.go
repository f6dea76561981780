package networkpolicy

import (
	"net/netip"

	"k8s.io/client-go/tools/cache"
)

// A Direction is that of a connection, seen from the pod that a policy selects.
type Direction int

// The directions, which index pairs.
const (
	Ingress Direction = iota
	Egress
)

func (d Direction) String() string { return [...]string{"ingress", "egress"}[d] }

var directions = [...]Direction{Ingress, Egress}

// A Kind says what a set holds.
type Kind int

const (
	// Addresses are those of the pods that a selector matches.
	Addresses Kind = iota
	// Own are the addresses of this node's pods, each with itself: no policy keeps
	// a pod from itself.
	Own
	// NamedPorts are addresses with the ports that have a name there.
	NamedPorts
	// Blocks are ranges of addresses, which never change.
	Blocks
	// Ports are ranges of ports, which never change.
	Ports
)

// An Element is a member of a set of Addresses, Own or NamedPorts.
type Element struct {
	Addr     netip.Addr
	Protocol byte
	Port     uint16
}

// A SetChange is what becomes of one set.
type SetChange struct {
	Kind Kind
	// Existed says whether the kernel has the set, Exists whether it shall.
	Existed, Exists bool
	// Refill says that what the kernel has in it is not what Elements begin with.
	Refill bool
	// Elements come (true) or go (false).
	Elements map[Element]bool
	Blocks   []Range
	Ports    []PortRange
}

// A Match accepts a connection. Sets are named by their ids; what is empty is
// not looked at.
type Match struct {
	Peers, Ports, Named string
	Port                *PortRange // in place of a set of one
}

// A Chain is what one policy allows in one direction, or, with Jumps, the
// policies that hold for some pods, beyond which nothing is allowed.
type Chain struct {
	Direction Direction
	Policy    cache.ObjectName
	Rules     []Match
	Jumps     []string
}

// A ChainChange is what becomes of one chain; Now is nil for one that goes.
type ChainChange struct {
	Existed bool
	Now     *Chain
}

// A Verdict is the chain of a pod's address; empty: none, the pod is not isolated.
type Verdict struct{ Old, New string }

// Changes lead from what the kernel has to what it shall have.
type Changes struct {
	Sets     map[string]*SetChange
	Chains   map[string]*ChainChange
	Verdicts [2]map[netip.Addr]Verdict // by Direction
}

func newChanges() *Changes {
	return &Changes{
		Sets: map[string]*SetChange{}, Chains: map[string]*ChainChange{},
		Verdicts: [2]map[netip.Addr]Verdict{{}, {}},
	}
}

func (c *Changes) empty() bool {
	return len(c.Sets)+len(c.Chains)+len(c.Verdicts[Ingress])+len(c.Verdicts[Egress]) == 0
}

// drop leaves out what came and went again.
func (c *Changes) drop() {
	for id, s := range c.Sets {
		if !s.Exists && !s.Existed || s.Exists && s.Existed && !s.Refill && len(s.Elements) == 0 {
			delete(c.Sets, id)
		}
	}
	for name, ch := range c.Chains {
		if !ch.Existed && ch.Now == nil {
			delete(c.Chains, name)
		}
	}
}

// member notes that an element comes or goes. One that does both has not changed.
func (s *SetChange) member(e Element, in bool) {
	if was, noted := s.Elements[e]; noted && was != in {
		delete(s.Elements, e)
		return
	}
	if s.Elements == nil {
		s.Elements = map[Element]bool{}
	}
	s.Elements[e] = in
}

// lead notes that an address gets another chain.
func (c *Changes) lead(d Direction, a netip.Addr, from, to string) {
	v, noted := c.Verdicts[d][a]
	if !noted {
		v.Old = from
	}
	if v.New = to; v.Old == v.New {
		delete(c.Verdicts[d], a)
		return
	}
	c.Verdicts[d][a] = v
}
