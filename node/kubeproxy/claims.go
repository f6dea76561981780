package kubeproxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/client-go/tools/cache"
)

// claims decide which Service has a front that several want, such as the same
// external address and port: the one whose own cluster address it is, then the
// oldest, then the first by name. Like plan it is pure: the outcome depends on the Services alone and not on
// the order in which they came.
type claims struct {
	wanted map[cache.ObjectName]wanted
	of     map[Front][]cache.ObjectName // the first has it
}

type wanted struct {
	rules   Rules
	created int64 // seconds
}

// A loss is a front that another Service has.
type loss struct {
	front Front
	owner cache.ObjectName
}

func newClaims() *claims {
	return &claims{wanted: map[cache.ObjectName]wanted{}, of: map[Front][]cache.ObjectName{}}
}

// set replaces what a Service wants and adds to affected each Service whose
// rules that may change, itself included.
func (c *claims) set(name cache.ObjectName, created int64, r Rules, affected map[cache.ObjectName]Rules) {
	affected[name] = Rules{}
	for front := range c.wanted[name].rules.Fronts {
		all := c.of[front]
		if all[0] == name && len(all) > 1 {
			affected[all[1]] = Rules{}
		}
		if all = slices.DeleteFunc(all, func(n cache.ObjectName) bool { return n == name }); len(all) == 0 {
			delete(c.of, front)
		} else {
			c.of[front] = all
		}
	}
	if r.empty() {
		delete(c.wanted, name)
		return
	}
	c.wanted[name] = wanted{r, created}
	for front := range r.Fronts {
		all := c.of[front]
		at, _ := slices.BinarySearchFunc(all, name, func(a, b cache.ObjectName) int { return c.compare(front, a, b) })
		if at == 0 && len(all) > 0 {
			affected[all[0]] = Rules{}
		}
		c.of[front] = slices.Insert(all, at, name)
	}
}

// has says whether a Service wants these rules already.
func (c *claims) has(name cache.ObjectName, created int64, r Rules) bool {
	was, wants := c.wanted[name]
	return wants && was.created == created && was.rules.equal(r) || !wants && r.empty()
}

func (c *claims) compare(front Front, a, b cache.ObjectName) int {
	x, y := c.wanted[a], c.wanted[b]
	if own := x.rules.ClusterIPs[front.Addr]; own != y.rules.ClusterIPs[front.Addr] {
		if own {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(x.created, y.created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// rules are what a Service gets of what it wants, and what it does not.
func (c *claims) rules(name cache.ObjectName) (Rules, []loss) {
	r := c.wanted[name].rules
	var lost []loss
	for front := range r.Fronts {
		if owner := c.of[front][0]; owner != name {
			lost = append(lost, loss{front, owner})
		}
	}
	if len(lost) == 0 {
		return r, nil
	}
	slices.SortFunc(lost, func(a, b loss) int {
		return cmp.Or(a.front.Addr.Compare(b.front.Addr), cmp.Compare(a.front.Number, b.front.Number), cmp.Compare(a.front.Protocol, b.front.Protocol))
	})
	r.Fronts = maps.Clone(r.Fronts)
	for _, l := range lost {
		delete(r.Fronts, l.front)
	}
	used := map[string]bool{}
	for _, t := range r.Fronts {
		used[t.Pool], used[t.Inside], used[t.Firewall] = true, true, true
	}
	r.Pools = maps.Clone(r.Pools)
	maps.DeleteFunc(r.Pools, func(pool string, _ Pool) bool { return !used[pool] })
	return r, lost
}

// empty says that a Service, or a node, has nothing in the kernel.
func (r Rules) empty() bool { return len(r.Fronts)+len(r.Pools)+len(r.NodeAddresses) == 0 }

// equal says that a Service, or a node, has the same in the kernel, and is as healthy.
func (r Rules) equal(o Rules) bool {
	return r.HealthPort == o.HealthPort && r.Local == o.Local && maps.Equal(r.Fronts, o.Fronts) && maps.EqualFunc(r.Pools, o.Pools, Pool.equal) &&
		maps.Equal(r.ClusterIPs, o.ClusterIPs) && maps.Equal(r.Hairpins, o.Hairpins) && maps.Equal(r.NodeAddresses, o.NodeAddresses)
}

func (p Pool) equal(o Pool) bool {
	return p.V6 == o.V6 && p.Affinity == o.Affinity && slices.Equal(p.Endpoints, o.Endpoints) && slices.Equal(p.Ending, o.Ending) && slices.Equal(p.Ranges, o.Ranges)
}

// of says whether anything of an address family is among the rules.
func (r Rules) of(v6 bool) bool {
	for front := range r.Fronts {
		if front.Addr.Is6() == v6 {
			return true
		}
	}
	for _, p := range r.Pools {
		if p.V6 == v6 {
			return true
		}
	}
	for _, addresses := range []map[netip.Addr]bool{r.ClusterIPs, r.NodeAddresses, r.Hairpins} {
		for a := range addresses {
			if a.Is6() == v6 {
				return true
			}
		}
	}
	return false
}

// conflict is what the loser's user reads. A Service of another namespace is
// not named: who may not read it need not learn of it.
func conflict(name cache.ObjectName, lost []loss) string {
	l := lost[0]
	at := fmt.Sprintf("Port %d/%s of %s", l.front.Number, l.front.Protocol, l.front.Addr)
	if l.front.IsNodePort() {
		at = fmt.Sprintf("Node port %d/%s", l.front.Number, l.front.Protocol)
	}
	owner := "a Service of another namespace"
	if l.owner.Namespace == name.Namespace {
		owner = "Service " + l.owner.String()
	}
	text := fmt.Sprintf("%s is already in use by %s, and leads there", at, owner)
	if n := len(lost) - 1; n > 0 {
		text += fmt.Sprintf("; %d more of this Service's ports are in use by others", n)
	}
	return text
}
