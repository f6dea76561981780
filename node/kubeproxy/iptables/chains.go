package iptables

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/node/kubeproxy"
)

// mark asks for masquerading after routing, as upstream's --iptables-masquerade-bit
// does by default.
const mark = "0x4000"

// A chain is a chain of table nat and its rules, without "-A NAME".
type chain struct {
	name  string
	rules []string
}

// A rendered Service is what it puts into one family's tables.
type rendered struct {
	chains []chain
	// services and nodePorts are its rules in the chains that all Services share, of
	// table nat; filter and filterPorts those of table filter.
	services, nodePorts, filter, filterPorts []string
}

// names are the chains that all Services share, each with the prefix of its proxy.
type names struct{ prefix string }

func (n names) top() string         { return n.prefix + "SERVICES" }
func (n names) nodePorts() string   { return n.prefix + "NODEPORTS" }
func (n names) postrouting() string { return n.prefix + "POSTROUTING" }
func (n names) markMasq() string    { return n.prefix + "MARK-MASQ" }
func (n names) outside() string     { return n.prefix + "OUTSIDE" }
func (n names) forward() string     { return n.prefix + "FORWARD" }
func (n names) canary() string      { return n.prefix + "CANARY" }

// shared are the names of table nat that belong to no Service.
func (n names) shared() []string {
	return []string{n.top(), n.nodePorts(), n.postrouting(), n.markMasq(), n.outside(), n.canary()}
}

// of is the chain of something of a Service: KIND-HASH, within iptables' 28 bytes. The
// hash tells apart what has one name in several proxies too.
func (n names) of(kind string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(append([]string{n.prefix, kind}, parts...), "\x00")))
	return n.prefix + kind + base32.StdEncoding.EncodeToString(sum[:])[:12]
}

// A renderer writes one family's rules.
type renderer struct {
	names
	v6 bool
	// masqueradeOutside says that there are ranges of pods, so that others are told apart.
	masqueradeOutside bool
	cluster           []netip.Prefix
}

func (w renderer) single(a netip.Addr) string {
	return netip.PrefixFrom(a, a.BitLen()).String()
}

func comment(text string) string { return `-m comment --comment "` + text + `"` }

func ports(p kubeproxy.Port) string {
	proto := strings.ToLower(string(p.Protocol))
	return fmt.Sprintf("-p %s -m %s --dport %d", proto, proto, p.Number)
}

// service renders what is of this family in a Service's rules.
func (w renderer) service(name cache.ObjectName, r kubeproxy.Rules) rendered {
	var out rendered
	fronts := slices.SortedFunc(maps.Keys(r.Fronts), func(a, b kubeproxy.Front) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
	})
	outside := map[string][]string{} // by pool, who is masqueraded on the way to it
	protocols := map[string]corev1.Protocol{}
	written := map[string]bool{}
	for _, f := range fronts {
		if f.Addr.Is6() == w.v6 {
			w.front(&out, name, f, r, outside, written)
			protocols[r.Fronts[f].Pool], protocols[r.Fronts[f].Inside] = f.Protocol, f.Protocol
		}
	}
	delete(protocols, "")
	for _, pool := range slices.Sorted(maps.Keys(protocols)) {
		w.pool(&out, name, pool, r.Pools[pool], strings.ToLower(string(protocols[pool])), outside[pool])
	}
	return out
}

// front adds the way from an address and port to a pool, or what happens without one.
func (w renderer) front(out *rendered, name cache.ObjectName, f kubeproxy.Front, r kubeproxy.Rules, outside map[string][]string, written map[string]bool) {
	what := comment(name.String())
	at := ports(f.Port)
	into, refuse := &out.nodePorts, &out.filterPorts
	if !f.IsNodePort() {
		at = "-d " + w.single(f.Addr) + " " + at
		into, refuse = &out.services, &out.filter
	}
	t := r.Fronts[f]
	switch {
	case t.Reject:
		*refuse = append(*refuse, comment(name.String()+" has no endpoints")+" "+at+" -j REJECT")
		return
	case t.Drop:
		*refuse = append(*refuse, comment(name.String()+" has no local endpoints")+" "+at+" -j DROP")
		if t.Inside == "" {
			return
		}
	}
	if t.Pool != "" && t.Masquerade == kubeproxy.MasqueradeOutside {
		*into = append(*into, what+" "+at+" -j "+w.of("SVC-", t.Pool))
		if w.masqueradeOutside && !f.IsNodePort() {
			outside[t.Pool] = append(outside[t.Pool], what+" "+at+" -j "+w.outside())
		}
		return
	}
	to := w.external(out, t, what, written)
	if t.Firewall != "" {
		to = w.firewall(out, to, r.Pools[t.Firewall], t.Firewall, what, written)
		*refuse = append(*refuse, comment(name.String()+" is not for this address")+" "+at+" -j DROP")
	}
	*into = append(*into, what+" "+at+" -j "+to)
}

// external is the chain for connections that may come from outside the cluster.
func (w renderer) external(out *rendered, t kubeproxy.Target, what string, written map[string]bool) string {
	name := w.of("EXT-", t.Pool, t.Inside, fmt.Sprint(t.Masquerade))
	if written[name] {
		return name
	}
	written[name] = true
	c := chain{name: name}
	if t.Inside != "" {
		for _, p := range w.cluster {
			c.rules = append(c.rules, what+" -s "+p.String()+" -j "+w.of("SVC-", t.Inside))
		}
		local := what + " -m addrtype --src-type LOCAL -j "
		c.rules = append(c.rules, local+w.markMasq(), local+w.of("SVC-", t.Inside))
	}
	if t.Masquerade == kubeproxy.MasqueradeAll {
		c.rules = append(c.rules, what+" -j "+w.markMasq())
	}
	if t.Pool != "" {
		c.rules = append(c.rules, what+" -j "+w.of("SVC-", t.Pool))
	}
	out.chains = append(out.chains, c)
	return name
}

// firewall is the chain that lets the addresses of a pool of ranges go on.
func (w renderer) firewall(out *rendered, to string, ranges kubeproxy.Pool, pool, what string, written map[string]bool) string {
	name := w.of("FW-", pool, to)
	if written[name] {
		return name
	}
	written[name] = true
	c := chain{name: name}
	for _, p := range ranges.Ranges {
		c.rules = append(c.rules, what+" -s "+p.String()+" -j "+to)
	}
	out.chains = append(out.chains, c)
	return name
}

// pool adds the chain that spreads over endpoints, and one for each endpoint. A
// client with affinity goes on to the endpoint that remembers it.
func (w renderer) pool(out *rendered, name cache.ObjectName, pool string, p kubeproxy.Pool, protocol string, outside []string) {
	what := comment(name.String())
	svc := chain{w.of("SVC-", pool), outside}
	seps := make([]chain, len(p.Endpoints))
	for i, ep := range p.Endpoints {
		sep := chain{name: w.of("SEP-", pool, ep.String())}
		dnat := what
		if p.Affinity > 0 {
			svc.rules = append(svc.rules, fmt.Sprintf("%s -m recent --name %s --rcheck --seconds %d --reap -j %s", what, sep.name, p.Affinity, sep.name))
			dnat += " -m recent --name " + sep.name + " --set"
		}
		sep.rules = []string{
			what + " -s " + w.single(ep.Addr()) + " -j " + w.markMasq(),
			dnat + " -p " + protocol + " -m " + protocol + " -j DNAT --to-destination " + ep.String(),
		}
		seps[i] = sep
	}
	for i, sep := range seps {
		rule := what
		if left := len(seps) - i; left > 1 {
			rule += fmt.Sprintf(" -m statistic --mode random --probability %.10f", 1/float64(left))
		}
		svc.rules = append(svc.rules, rule+" -j "+sep.name)
	}
	out.chains = append(append(out.chains, svc), seps...)
}
