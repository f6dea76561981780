package iptables

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/client-go/tools/cache"

	"knarr/node/kubeproxy"
)

// A hook is a rule in a chain of the kernel's that leads into one of ours.
type hook struct{ table, chain, rule string }

func (n names) hooks() []hook {
	isNew := "-m conntrack --ctstate NEW "
	portals := comment("kubernetes service portals")
	return []hook{
		{"nat", "PREROUTING", portals + " -j " + n.top()},
		{"nat", "OUTPUT", portals + " -j " + n.top()},
		{"nat", "POSTROUTING", comment("kubernetes postrouting rules") + " -j " + n.postrouting()},
		{"filter", "INPUT", isNew + portals + " -j " + n.top()},
		{"filter", "OUTPUT", isNew + portals + " -j " + n.top()},
		{"filter", "FORWARD", isNew + portals + " -j " + n.top()},
		{"filter", "FORWARD", comment("kubernetes forwarding rules") + " -j " + n.forward()},
	}
}

// A state is what one family's tables hold: of each Service what it was rendered to.
type state struct {
	renderer
	nodePortsIn []netip.Prefix
	services    map[cache.ObjectName]rendered
	rules       map[cache.ObjectName]kubeproxy.Rules
	node        kubeproxy.Rules
}

// A script is the input of iptables-restore, and whose each of its lines is.
type script struct {
	text  strings.Builder
	owner []cache.ObjectName        // by line
	wrote map[cache.ObjectName]bool // whose chains are in it
}

func (s *script) line(owner cache.ObjectName, text string) {
	s.text.WriteString(text)
	s.text.WriteByte('\n')
	s.owner = append(s.owner, owner)
}

// chain declares a chain, which empties it.
func (s *script) chain(owner cache.ObjectName, name string) { s.line(owner, ":"+name+" - [0:0]") }

func (s *script) add(owner cache.ObjectName, chain, rule string) {
	s.line(owner, "-A "+chain+" "+rule)
}

var nobody cache.ObjectName // owns the lines that are no Service's

// write renders the chains of some Services, and those that all share, which a change
// of any Service may concern. gone are chains of table nat that nobody uses any more,
// missing the hooks that are not there.
func (st *state) write(changed []cache.ObjectName, gone []string, missing []hook) *script {
	s := &script{wrote: map[cache.ObjectName]bool{}}
	names := slices.SortedFunc(maps.Keys(st.services), func(a, b cache.ObjectName) int { return strings.Compare(a.String(), b.String()) })
	s.line(nobody, "*filter")
	st.filter(s, names)
	hooks(s, "filter", missing)
	s.line(nobody, "COMMIT")
	s.line(nobody, "*nat")
	for _, name := range st.shared() {
		s.chain(nobody, name)
	}
	for _, name := range gone {
		s.chain(nobody, name)
	}
	for _, name := range changed {
		s.wrote[name] = true
		for _, c := range st.services[name].chains {
			s.chain(name, c.name)
		}
	}
	for _, name := range changed {
		for _, c := range st.services[name].chains {
			for _, rule := range c.rules {
				s.add(name, c.name, rule)
			}
		}
	}
	for _, name := range names {
		for _, rule := range st.services[name].services {
			s.add(name, st.top(), rule)
		}
		for _, rule := range st.services[name].nodePorts {
			s.add(name, st.nodePorts(), rule)
		}
	}
	st.toNodePorts(s, st.top())
	st.masquerade(s)
	for _, name := range gone {
		s.line(nobody, "-X "+name)
	}
	hooks(s, "nat", missing)
	s.line(nobody, "COMMIT")
	return s
}

func hooks(s *script, table string, missing []hook) {
	for _, h := range missing {
		if h.table == table {
			s.line(nobody, "-I "+h.chain+" 1 "+h.rule)
		}
	}
}

// filter writes what is refused, and lets go on what was accepted.
func (st *state) filter(s *script, names []cache.ObjectName) {
	for _, c := range []string{st.top(), st.nodePorts(), st.forward()} {
		s.chain(nobody, c)
	}
	for _, name := range names {
		for _, rule := range st.services[name].filter {
			s.add(name, st.top(), rule)
		}
		for _, rule := range st.services[name].filterPorts {
			s.add(name, st.nodePorts(), rule)
		}
	}
	st.toNodePorts(s, st.top())
	// What still goes to an address of the Services' ranges goes to none's port.
	for _, p := range st.node.Pools[kubeproxy.ServiceRanges(st.v6)].Ranges {
		s.add(nobody, st.top(), comment("kubernetes service ranges")+" -d "+p.String()+" -j REJECT")
	}
	s.add(nobody, st.forward(), "-m conntrack --ctstate INVALID -j DROP")
	s.add(nobody, st.forward(), comment("kubernetes forwarding rules")+" -m mark --mark "+mark+"/"+mark+" -j ACCEPT")
	s.add(nobody, st.forward(), comment("kubernetes forwarding conntrack rule")+" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
}

// toNodePorts leads on what goes to an address where node ports are.
func (st *state) toNodePorts(s *script, from string) {
	text := comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
	if len(st.nodePortsIn) > 0 {
		for _, p := range st.nodePortsIn {
			s.add(nobody, from, fmt.Sprintf("%s -d %s -m addrtype --dst-type LOCAL -j %s", text, p, st.nodePorts()))
		}
		return
	}
	for _, a := range slices.SortedFunc(maps.Keys(st.node.NodeAddresses), netip.Addr.Compare) {
		if a.Is6() == st.v6 {
			s.add(nobody, from, text+" -d "+st.single(a)+" -j "+st.nodePorts())
		}
	}
}

// masquerade writes who is masqueraded: those from outside of the pods' ranges, and
// what was marked.
func (st *state) masquerade(s *script) {
	for _, p := range st.cluster {
		s.add(nobody, st.outside(), "-s "+p.String()+" -j RETURN")
	}
	s.add(nobody, st.outside(), "-j "+st.markMasq())
	s.add(nobody, st.markMasq(), "-j MARK --or-mark "+mark)
	s.add(nobody, st.postrouting(), "-m mark ! --mark "+mark+"/"+mark+" -j RETURN")
	s.add(nobody, st.postrouting(), "-j MARK --xor-mark "+mark)
	s.add(nobody, st.postrouting(), comment("kubernetes service traffic requiring SNAT")+" -j MASQUERADE --random-fully")
}

// chainNames are the chains of a Service.
func (r rendered) chainNames() (found []string) {
	for _, c := range r.chains {
		found = append(found, c.name)
	}
	return found
}
