package ingress

import (
	"crypto/tls"
	"maps"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/gateway/route"
	"knarr/internal/references"
)

// A known is what the compilation before has made. The next one makes those parts anew that
// have changed, so that a change costs as much as it changes.
type known struct {
	list    []*networkingv1.Ingress // in order
	members map[types.NamespacedName]*member
	parts   []*part
	byKey   map[string]*part
	counts  map[string]*counted
	// crowded are namespaces that have more paths than they may.
	crowded map[string]bool
	// asked is how many parts have asked for an object.
	asked  map[references.Object]int
	shared *Shared

	// What all parts have together, never changed once it was handed over.
	names    map[string]*tls.Certificate
	verdicts map[types.NamespacedName]Verdict
	out      *Output // nil once a part has changed

	// What all depend on.
	fallback  *tls.Certificate
	challenge string
	domain    string
	left      map[references.Object]string
}

// A counted is what is counted of a namespace, over all parts.
type counted struct{ parts, paths, offered, refused int }

func newKnown(in *Input) *known {
	return &known{
		members: make(map[types.NamespacedName]*member, len(in.Ingresses)), byKey: make(map[string]*part, len(in.Ingresses)), counts: map[string]*counted{}, crowded: map[string]bool{},
		asked: map[references.Object]int{}, shared: NewShared(), verdicts: map[types.NamespacedName]Verdict{},
		fallback: in.Default, challenge: in.Challenge, domain: in.Domain, left: in.Left,
	}
}

// holds says whether what all depend on is as it was.
func (k *known) holds(in *Input) bool {
	return k != nil && k.fallback == in.Default && k.challenge == in.Challenge && k.domain == in.Domain && maps.Equal(k.left, in.Left)
}

// update makes what has changed anew.
func (k *known) update(in *Input) {
	stale := map[*part]bool{}
	fresh := k.follow(in.Ingresses, stale)
	for _, p := range k.parts {
		if !p.holds(in) {
			stale[p] = true
		}
	}
	if len(stale) == 0 && len(fresh) == 0 {
		return
	}
	c := newCompilation(in)
	ch := &change{names: map[string]*tls.Certificate{}, verdicts: map[types.NamespacedName]Verdict{}}
	for len(stale) > 0 || len(fresh) > 0 {
		var all []*subject
		for _, ing := range fresh {
			s := c.read(ing)
			k.meets(s, stale)
			all = append(all, s)
		}
		for p := range stale {
			for _, m := range p.members {
				if !m.gone {
					all = append(all, c.read(m.ing))
				}
			}
		}
		slices.SortFunc(all, func(a, b *subject) int { return byAge(a.ing, b.ing) })
		made := []*part{}
		for _, group := range grouped(all, k.crowded) {
			made = append(made, c.part(group))
		}
		k.replace(stale, made, ch)
		fresh, stale = nil, k.overfull()
	}
	k.apply(ch)
}

// follow notes which Ingresses there are. Those that are new, or have changed, are returned;
// the parts that they were of are stale.
func (k *known) follow(list []*networkingv1.Ingress, stale map[*part]bool) (fresh []*networkingv1.Ingress) {
	list = slices.Clone(list)
	from, to, nowTo := route.Changed(k.list, list)
	if !slices.IsSortedFunc(list[max(from-1, 0):min(nowTo+1, len(list))], byAge) { // the rest was
		slices.SortFunc(list, byAge)
		from, to, nowTo = route.Changed(k.list, list)
	}
	there := make(map[types.NamespacedName]bool, nowTo-from)
	for _, ing := range list[from:nowTo] {
		name := types.NamespacedName{Namespace: ing.Namespace, Name: ing.Name}
		there[name] = true
		m := k.members[name]
		switch {
		case m == nil:
		case m.ing == ing:
			continue
		case sameWish(m.ing, ing):
			m.ing = ing
			continue
		default:
			k.leave(m, stale)
		}
		fresh = append(fresh, ing)
	}
	for _, ing := range k.list[from:to] {
		name := types.NamespacedName{Namespace: ing.Namespace, Name: ing.Name}
		if m := k.members[name]; m != nil && !there[name] {
			k.leave(m, stale)
		}
	}
	k.list = list
	return fresh
}

func (k *known) leave(m *member, stale map[*part]bool) {
	m.gone = true
	stale[m.of] = true
	delete(k.members, types.NamespacedName{Namespace: m.ing.Namespace, Name: m.ing.Name})
}

// sameWish says whether no more than the status, or the labels, of an Ingress has changed.
func sameWish(a, b *networkingv1.Ingress) bool {
	return a.UID != "" && a.UID == b.UID && a.Generation != 0 && a.Generation == b.Generation && a.CreationTimestamp.Equal(&b.CreationTimestamp) && maps.Equal(a.Annotations, b.Annotations)
}

// meets finds the parts that an Ingress has to do with.
func (k *known) meets(s *subject, stale map[*part]bool) {
	mark := func(key string) {
		if p := k.byKey[key]; p != nil {
			stale[p] = true
		}
	}
	for _, key := range s.keys() {
		mark(key)
	}
	for _, h := range s.hosts {
		if w := wildcard(h); w != "" {
			mark(w)
		}
		if strings.HasPrefix(h, "*.") {
			for _, p := range k.parts {
				if slices.ContainsFunc(p.hosts, func(below string) bool { return wildcard(below) == h }) {
					stale[p] = true
				}
			}
		}
	}
	if k.crowded[s.name.Namespace] {
		k.of(s.name.Namespace, stale)
	}
}

// of finds the parts that have Ingresses of a namespace.
func (k *known) of(namespace string, parts map[*part]bool) {
	for _, p := range k.parts {
		if slices.ContainsFunc(p.counts, func(c count) bool { return c.namespace == namespace }) {
			parts[p] = true
		}
	}
}

// overfull finds namespaces that have come to have too many paths, and the parts that become one
// for that: of the paths of a namespace the oldest ones count.
func (k *known) overfull() map[*part]bool {
	stale := map[*part]bool{}
	maps.DeleteFunc(k.crowded, func(namespace string, _ bool) bool { return k.counts[namespace] == nil })
	for namespace, n := range k.counts {
		full := n.paths > MaxPathsEach || n.offered > MaxPathsEach || n.refused > 0
		switch {
		case full && n.parts > 1:
			k.crowded[namespace] = true
			k.of(namespace, stale)
		case !full:
			delete(k.crowded, namespace)
		}
	}
	return stale
}

// A change is what several parts differ from those before by: nil and zero values are of what
// is no more.
type change struct {
	names    map[string]*tls.Certificate
	verdicts map[types.NamespacedName]Verdict
}

// replace puts parts where others were, so that most routes keep their places.
func (k *known) replace(stale map[*part]bool, made []*part, ch *change) {
	k.out = nil
	at, kept := -1, make([]*part, 0, len(k.parts)+len(made))
	for _, p := range k.parts {
		if !stale[p] {
			kept = append(kept, p)
			continue
		}
		if at < 0 {
			at = len(kept)
		}
		k.remove(p, ch)
	}
	if at < 0 {
		at = len(kept)
	}
	for _, p := range made {
		k.add(p, ch)
	}
	k.parts = slices.Insert(kept, at, made...)
}

func (k *known) remove(p *part, ch *change) {
	for _, key := range p.keys {
		if k.byKey[key] == p {
			delete(k.byKey, key)
		}
	}
	for _, c := range p.counts {
		n := k.counts[c.namespace]
		n.parts, n.paths, n.offered = n.parts-1, n.paths-c.paths, n.offered-c.offered
		if c.refused {
			n.refused--
		}
		if n.parts == 0 {
			delete(k.counts, c.namespace)
		}
	}
	for i := range p.asked {
		if o := p.asked[i].Object; k.asked[o] > 1 {
			k.asked[o]--
		} else {
			delete(k.asked, o)
		}
	}
	k.shared.Remove(p.backends)
	for name := range p.names {
		ch.names[name] = nil
	}
	for i, m := range p.members {
		if len(p.verdicts[i].Faults) > 0 {
			ch.verdicts[types.NamespacedName{Namespace: m.ing.Namespace, Name: m.ing.Name}] = Verdict{}
		}
	}
}

func (k *known) add(p *part, ch *change) {
	for _, key := range p.keys {
		k.byKey[key] = p
	}
	for _, c := range p.counts {
		n := k.counts[c.namespace]
		if n == nil {
			n = &counted{}
			k.counts[c.namespace] = n
		}
		n.parts, n.paths, n.offered = n.parts+1, n.paths+c.paths, n.offered+c.offered
		if c.refused {
			n.refused++
		}
	}
	for i := range p.asked {
		k.asked[p.asked[i].Object]++
	}
	k.shared.Add(p.backends)
	maps.Copy(ch.names, p.names)
	for i, m := range p.members {
		name := types.NamespacedName{Namespace: m.ing.Namespace, Name: m.ing.Name}
		k.members[name] = m
		if len(p.verdicts[i].Faults) > 0 {
			ch.verdicts[name] = p.verdicts[i]
		}
	}
}

// apply makes what all parts have together. What nothing has changed of stays the very same.
func (k *known) apply(ch *change) {
	k.shared.Apply()
	maps.DeleteFunc(ch.names, func(name string, cert *tls.Certificate) bool { return k.names[name] == cert })
	if len(ch.names) > 0 {
		names := make(map[string]*tls.Certificate, len(k.names)+len(ch.names))
		maps.Copy(names, k.names)
		maps.Copy(names, ch.names)
		maps.DeleteFunc(names, func(_ string, cert *tls.Certificate) bool { return cert == nil })
		if k.names = names; len(names) == 0 {
			k.names = nil
		}
	}
	if len(ch.verdicts) > 0 {
		k.verdicts = maps.Clone(k.verdicts)
		for name, v := range ch.verdicts {
			if v.Faults == nil {
				delete(k.verdicts, name)
			} else {
				k.verdicts[name] = v
			}
		}
	}
}

// output is what all parts are together.
func (k *known) output() *Output {
	if k.out != nil {
		return k.out
	}
	out := &Output{Backends: k.shared.Backends, Targets: k.shared.Targets, Verdicts: k.verdicts}
	routes := make([]*route.Route, 0, len(k.parts))
	var http3, challenged []string
	var passthrough []route.Listener
	for _, p := range k.parts {
		routes = append(routes, p.routes...)
		http3, challenged = append(http3, p.http3...), append(challenged, p.challenged...)
		passthrough, out.Orders = append(passthrough, p.passthrough...), append(out.Orders, p.orders...)
	}
	at := uint16(0)
	if len(http3) > 0 {
		at = HTTPSPort
	}
	out.Listeners = append([]route.Listener{
		{Name: HTTPListener, Port: HTTPPort, PublicPort: HTTPPort, Protocol: route.HTTP, Routes: routes, Challenge: k.challenge, ChallengeHosts: challenged},
		{Name: HTTPSListener, Port: HTTPSPort, PublicPort: HTTPSPort, Protocol: route.HTTPS, Routes: routes,
			Certificates: []*tls.Certificate{k.fallback}, Names: k.names, Own: k.besidePassthrough(passthrough), HTTP3Port: at, HTTP3Hosts: http3},
	}, passthrough...)
	k.out = out
	return out
}

// besidePassthrough are the hosts below wildcards whose connections are passed on: whoever
// passes those of a wildcard on gets none of a host that has rules of its own.
func (k *known) besidePassthrough(passthrough []route.Listener) (own []string) {
	whole, wildcards := map[string]bool{}, false
	for i := range passthrough {
		name := passthrough[i].Hostname
		whole[name] = true
		wildcards = wildcards || strings.HasPrefix(name, "*.")
	}
	if !wildcards {
		return nil
	}
	for _, p := range k.parts {
		for _, host := range p.hosts {
			if whole[host] {
				continue
			}
			for rest := strings.TrimPrefix(host, "*."); rest != ""; {
				_, after, _ := strings.Cut(rest, ".")
				if rest = after; rest != "" && whole["*."+rest] {
					own = append(own, host)
					break
				}
			}
		}
	}
	slices.Sort(own)
	return own
}

// uses are what the parts hold of what was parsed.
func (k *known) uses(yield func(*use) bool) {
	for _, p := range k.parts {
		for _, u := range p.uses {
			if !yield(u) {
				return
			}
		}
	}
}
