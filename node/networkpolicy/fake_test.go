package networkpolicy

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"testing"

	"k8s.io/client-go/tools/cache"
)

// fakeKernel holds what it is given, and is as strict as a kernel: what comes must
// not be there or be the same, and what goes must be there.
type fakeKernel struct {
	sets     map[string]*fakeSet
	chains   map[string]*Chain
	verdicts [2]map[netip.Addr]string
	writes   int // of elements and verdicts
}

type fakeSet struct {
	elements map[Element]bool
	blocks   []Range
	ports    []PortRange
}

func newFake() *fakeKernel {
	return &fakeKernel{sets: map[string]*fakeSet{}, chains: map[string]*Chain{}, verdicts: [2]map[netip.Addr]string{{}, {}}}
}

func (k *fakeKernel) Apply(c *Changes, all bool) (map[cache.ObjectName]error, error) {
	if all {
		*k = *newFake()
	}
	for id, ch := range c.Sets {
		if err := k.applySet(id, ch); err != nil {
			return nil, err
		}
	}
	for name, ch := range c.Chains {
		if _, had := k.chains[name]; had != ch.Existed {
			return nil, fmt.Errorf("chain %s: there %v, existed %v", name, had, ch.Existed)
		}
		if ch.Now == nil {
			delete(k.chains, name)
		} else {
			k.chains[name] = ch.Now
		}
	}
	for _, d := range directions {
		for a, v := range c.Verdicts[d] {
			if k.verdicts[d][a] != v.Old {
				return nil, fmt.Errorf("%s of %s leads to %q, not %q", d, a, k.verdicts[d][a], v.Old)
			}
			k.writes++
			if v.New == "" {
				delete(k.verdicts[d], a)
			} else {
				k.verdicts[d][a] = v.New
			}
		}
	}
	return nil, k.whole()
}

func (k *fakeKernel) applySet(id string, ch *SetChange) error {
	s := k.sets[id]
	if (s != nil) != ch.Existed {
		return fmt.Errorf("set %s: there %v, existed %v", id, s != nil, ch.Existed)
	}
	if !ch.Exists {
		delete(k.sets, id)
		return nil
	}
	if s == nil || ch.Refill {
		s = &fakeSet{elements: map[Element]bool{}, blocks: ch.Blocks, ports: ch.Ports}
		k.sets[id] = s
	}
	for e, in := range ch.Elements {
		if s.elements[e] == in {
			return fmt.Errorf("set %s: element %v comes or goes twice, in %v", id, e, in)
		}
		k.writes++
		if in {
			s.elements[e] = true
		} else {
			delete(s.elements, e)
		}
	}
	return nil
}

// whole says what leads nowhere, and what nothing leads to.
func (k *fakeKernel) whole() error {
	sets, chains := map[string]bool{"": true, ownSet: true}, map[string]bool{}
	for _, ch := range k.chains {
		for _, m := range ch.Rules {
			sets[m.Peers], sets[m.Ports], sets[m.Named] = true, true, true
		}
		for _, j := range ch.Jumps {
			chains[j] = true
		}
	}
	for _, d := range directions {
		for _, name := range k.verdicts[d] {
			chains[name] = true
		}
	}
	for id := range sets {
		if id != "" && k.sets[id] == nil && id != ownSet {
			return fmt.Errorf("there is no set %s", id)
		}
	}
	for id := range k.sets {
		if !sets[id] {
			return fmt.Errorf("nothing looks set %s up", id)
		}
	}
	for name := range chains {
		if k.chains[name] == nil {
			return fmt.Errorf("there is no chain %s", name)
		}
	}
	return nil
}

// allows says what becomes of a connection.
func (k *fakeKernel) allows(from, to netip.Addr, port PortRange) bool {
	if from == to && k.sets[ownSet].elements[Element{Addr: from}] {
		return true
	}
	return k.passes(Egress, from, to, to, port) && k.passes(Ingress, to, from, to, port)
}

func (k *fakeKernel) passes(d Direction, mine, peer, to netip.Addr, port PortRange) bool {
	chain := k.verdicts[d][mine]
	if chain == "" {
		return true
	}
	for _, j := range k.chains[chain].Jumps {
		for _, m := range k.chains[j].Rules {
			if k.matches(m, peer, to, port) {
				return true
			}
		}
	}
	return false
}

func (k *fakeKernel) matches(m Match, peer, to netip.Addr, port PortRange) bool {
	within := func(list []PortRange) bool {
		for _, r := range list {
			if r.Protocol == port.Protocol && r.First <= port.First && port.First <= r.Last {
				return true
			}
		}
		return false
	}
	if m.Peers != "" {
		s, in := k.sets[m.Peers], false
		for _, r := range s.blocks {
			in = in || !peer.Less(r.First) && !r.Last.Less(peer)
		}
		if !in && !s.elements[Element{Addr: peer}] {
			return false
		}
	}
	return (m.Port == nil || within([]PortRange{*m.Port})) &&
		(m.Ports == "" || within(k.sets[m.Ports].ports)) &&
		(m.Named == "" || k.sets[m.Named].elements[Element{to, port.Protocol, port.First}])
}

// sameAs compares what two kernels hold.
func (k *fakeKernel) sameAs(t *testing.T, other *fakeKernel) {
	t.Helper()
	if !reflect.DeepEqual(k.verdicts, other.verdicts) {
		t.Errorf("verdicts %v and %v", k.verdicts, other.verdicts)
	}
	if a, b := sortedKeys(k.chains), sortedKeys(other.chains); !reflect.DeepEqual(a, b) {
		t.Errorf("chains %v and %v", a, b)
	}
	if a, b := sortedKeys(k.sets), sortedKeys(other.sets); !reflect.DeepEqual(a, b) {
		t.Fatalf("sets %v and %v", a, b)
	}
	for id, s := range k.sets {
		if !maps.Equal(s.elements, other.sets[id].elements) {
			t.Errorf("set %s: %v and %v", id, s.elements, other.sets[id].elements)
		}
	}
}
