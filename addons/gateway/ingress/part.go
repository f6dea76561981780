package ingress

import (
	"cmp"
	"crypto/tls"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/gateway/route"
	"knarr/internal/references"
)

// A part is Ingresses that have to do with each other, and what became of them: nothing of the
// others changes that. Most parts have one Ingress.
type part struct {
	members []*member
	hosts   []string // of their rules and aliases
	keys    []string // by which others have to do with them

	routes      []*route.Route
	backends    []Made
	names       map[string]*tls.Certificate
	passthrough []route.Listener
	http3       []string
	challenged  []string
	verdicts    []Verdict // in the order of members
	orders      []Order
	counts      []count

	// asked is what was asked for that. until is when a certificate of it begins or ends,
	// granted that ReferenceGrants were asked, which are asked again each time.
	asked   []asked
	until   time.Time
	granted bool
	uses    []*use
}

// A member is an Ingress of a part. It is replaced by another one if more than its status changes.
type member struct {
	ing  *networkingv1.Ingress
	of   *part
	gone bool
}

// A count is how many paths the Ingresses of a namespace have in a part, and whether some are
// left out because the namespace has too many.
type count struct {
	namespace      string
	paths, offered int
	refused        bool
}

// An asked is a Service, Secret or ConfigMap and what was found.
type asked struct {
	references.Object
	is any
}

// find is what an object is now.
func (in *Input) find(o references.Object) any {
	name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	switch o.Resource {
	case "secrets":
		return in.Secret(name)
	case "configmaps":
		return in.ConfigMap(name)
	}
	return in.Service(name)
}

// holds says whether what was found for a part is what there is.
func (p *part) holds(in *Input) bool {
	if p.granted || !p.until.IsZero() && !in.Now.Before(p.until) {
		return false
	}
	for i := range p.asked {
		if a := &p.asked[i]; (in.Changed == nil || in.Changed(a.Object)) && in.find(a.Object) != a.is {
			return false
		}
	}
	return true
}

// base is what hosts have in common one of which leads to the other (from-to-www-redirect).
func base(host string) string {
	for {
		rest, ok := strings.CutPrefix(host, "www.")
		if !ok {
			return host
		}
		host = rest
	}
}

// wildcard is the one that covers a host; "" if none does. It may have a certificate for it.
func wildcard(host string) string {
	if _, rest, ok := strings.Cut(host, "."); ok && rest != "" {
		return "*." + rest
	}
	return ""
}

// keys are what an Ingress has in common with others that it has to do with: the hosts, and ""
// for what is for all of them.
func (s *subject) keys() []string {
	keys := make([]string, 0, len(s.hosts)+1)
	for _, h := range s.hosts {
		keys = append(keys, base(h))
	}
	if s.ing.Spec.DefaultBackend != nil {
		keys = append(keys, "")
	}
	return keys
}

// grouped puts those together that have to do with each other: of hosts that are the same, or
// differ by "www." alone, or of which one is a wildcard that covers the other; and those of
// namespaces that have more paths than they may, of which the oldest count. all is in order.
func grouped(all []*subject, crowded map[string]bool) (groups [][]*subject) {
	parent := make([]int, len(all))
	find := func(i int) int {
		for parent[i] != i {
			parent[i] = parent[parent[i]]
			i = parent[i]
		}
		return i
	}
	join := func(i, j int) {
		a, b := find(i), find(j)
		parent[max(a, b)] = min(a, b)
	}
	first, ofNamespace := make(map[string]int, len(all)), map[string]int{}
	for i, s := range all {
		parent[i] = i
		for _, key := range s.keys() {
			if j, ok := first[key]; ok {
				join(i, j)
			} else {
				first[key] = i
			}
		}
		if crowded[s.name.Namespace] {
			if j, ok := ofNamespace[s.name.Namespace]; ok {
				join(i, j)
			} else {
				ofNamespace[s.name.Namespace] = i
			}
		}
	}
	for i, s := range all {
		for _, h := range s.hosts {
			if j, ok := first[wildcard(h)]; ok && wildcard(h) != "" {
				join(i, j)
			}
		}
	}
	at := make(map[int]int, len(all))
	for i, s := range all {
		root := find(i)
		n, ok := at[root]
		if !ok {
			n = len(groups)
			at[root], groups = n, append(groups, nil)
		}
		groups[n] = append(groups[n], s)
	}
	return groups
}

// newCompilation makes parts of an Input. It notes what it asks for.
func newCompilation(in *Input) *compilation {
	c := &compilation{
		Input: *in, backends: map[string]Made{}, names: map[string]*tls.Certificate{}, claims: map[claim]types.NamespacedName{}, canaries: map[claim]*canary{},
		owners: map[string]string{}, paths: map[string]int{}, offered: map[string]int{}, refused: map[string]bool{}, http3Named: map[string]bool{},
	}
	c.Service = func(n types.NamespacedName) *corev1.Service {
		o := in.Service(n)
		c.note("services", n, o)
		return o
	}
	c.Secret = func(n types.NamespacedName) *corev1.Secret {
		o := in.Secret(n)
		c.note("secrets", n, o)
		return o
	}
	c.ConfigMap = func(n types.NamespacedName) *corev1.ConfigMap {
		o := in.ConfigMap(n)
		c.note("configmaps", n, o)
		return o
	}
	if in.Granted != nil {
		c.Granted = func(from string, to types.NamespacedName) bool {
			c.made.granted = true
			return in.Granted(from, to)
		}
	}
	return c
}

func (c *compilation) note(resource string, n types.NamespacedName, is any) {
	a := asked{references.Object{Resource: resource, Namespace: n.Namespace, Name: n.Name}, is}
	const few = 8 // that are looked through; one that is noted twice does no harm
	if !slices.Contains(c.made.asked[max(0, len(c.made.asked)-few):], a) {
		c.made.asked = append(c.made.asked, a)
	}
}

// reset begins another part.
func (c *compilation) reset() {
	c.made = &part{}
	c.Parsed.uses = nil
	clear(c.backends)
	clear(c.names)
	clear(c.claims)
	clear(c.canaries)
	clear(c.owners)
	clear(c.paths)
	clear(c.offered)
	clear(c.refused)
	clear(c.http3Named)
}

// read is an Ingress with what its annotations say.
func (c *compilation) read(ing *networkingv1.Ingress) *subject {
	s := &subject{ing: ing, name: types.NamespacedName{Namespace: ing.Namespace, Name: ing.Name}}
	s.guard(func() { s.read(c) })
	s.hosts = s.allHosts()
	return s
}

// byAge orders Ingresses: older ones come before younger ones.
func byAge(a, b *networkingv1.Ingress) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// part compiles Ingresses, which are in order.
func (c *compilation) part(all []*subject) *part {
	c.reset()
	p := c.made
	for _, s := range all {
		for _, host := range s.hosts {
			if _, owned := c.owners[host]; !owned {
				c.owners[host] = s.name.Namespace
			}
		}
		p.keys = append(p.keys, s.keys()...)
	}
	for _, s := range all {
		s.guard(func() { c.certify(s); c.order(s) })
		if s.want.canary.on {
			s.guard(func() { c.offer(s) })
		}
	}
	for _, s := range all {
		if !s.want.canary.on {
			s.guard(func() { c.serve(s) })
		}
	}
	for _, offered := range slices.SortedFunc(maps.Values(c.canaries), func(a, b *canary) int { return strings.Compare(a.at.String(), b.at.String()) }) {
		if !offered.used {
			offered.of.fault("no Ingress that is not a canary serves %s: nothing is sent to the canary", offered.at)
		}
	}
	namespaces := map[string]bool{}
	for _, s := range all {
		p.members = append(p.members, &member{ing: s.ing, of: p})
		p.verdicts = append(p.verdicts, Verdict{Faults: s.bounded()})
		namespaces[s.name.Namespace] = true
	}
	for n := range namespaces {
		p.counts = append(p.counts, count{n, c.paths[n], c.offered[n], c.refused[n]})
	}
	p.hosts = slices.Collect(maps.Keys(c.owners))
	p.keys = slices.Compact(slices.Sorted(slices.Values(p.keys)))
	p.backends = slices.Collect(maps.Values(c.backends))
	if len(c.names) > 0 {
		p.names = maps.Clone(c.names)
	}
	p.uses, c.Parsed.uses = c.Parsed.uses, nil
	return p
}
