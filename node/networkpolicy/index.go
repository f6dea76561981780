package networkpolicy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// An index knows all pods, namespaces and policies, and gathers what their
// changes change in the kernel. The cost of a pod's change is that of its own
// namespace's selectors, however many pods there are. It has no lock and does
// nothing by itself.
type index struct {
	node       string
	namespaces map[string]*namespace
	pods       map[cache.ObjectName]*pod
	policies   map[cache.ObjectName]*policy
	// Who has an address, and who says so too.
	owner  map[netip.Addr]*pod
	others map[netip.Addr][]*pod
	// What the policies that hold on this node look up.
	sets  map[string]*set
	wide  map[*set]bool // whose selectors match namespaces by labels
	named map[portName]*set
	// Sets of named ports whose members are still to be gathered, of all pods at once.
	unfilled map[*set]bool
	chains   map[string]*podChain
	active   map[string]*Chain // all that the kernel shall have
	// What the pod network has said of pods that the API has no addresses of yet.
	attached map[types.UID][]netip.Addr
	local    map[types.UID]*pod
	// Policies that there is no room for, those of them that nobody was told of, and
	// whether there may be room by now.
	full    map[*policy]bool
	refused []*policy
	freed   bool
	bounds  struct{ namespace, sets int }

	changes *Changes
}

// A namespace is what of it is known; pods and policies may come before it.
type namespace struct {
	labels   labels.Set
	exists   bool
	pods     map[cache.ObjectName]*pod
	policies map[cache.ObjectName]*policy
	sets     map[*set]bool // of Addresses, that its pods may be in
	size     int           // of its policies that are in force here
}

// A set is one that policies look up, as many as users says.
type set struct {
	setSpec
	users int
}

// A podChain is what pods with the same policies share.
type podChain struct {
	Chain
	pods int
}

// ownSet is the set of this node's pods.
const ownSet = "own"

func newIndex(node string) *index {
	ix := &index{
		node: node, namespaces: map[string]*namespace{}, pods: map[cache.ObjectName]*pod{}, policies: map[cache.ObjectName]*policy{},
		owner: map[netip.Addr]*pod{}, others: map[netip.Addr][]*pod{},
		sets: map[string]*set{}, wide: map[*set]bool{}, named: map[portName]*set{}, unfilled: map[*set]bool{}, chains: map[string]*podChain{}, active: map[string]*Chain{},
		attached: map[types.UID][]netip.Addr{}, local: map[types.UID]*pod{},
		full:    map[*policy]bool{},
		changes: newChanges(),
	}
	own := setSpec{id: ownSet, kind: Own}
	ix.sets[ownSet] = &set{setSpec: own, users: 1}
	ix.bounds.namespace, ix.bounds.sets = maxNamespace, maxSets
	return ix
}

// take gives what has changed since it was called last.
func (ix *index) take() *Changes {
	ix.refit()
	ix.fillNamed()
	c := ix.changes
	ix.changes = newChanges()
	c.drop()
	return c
}

// whole gives everything, for a kernel that has nothing.
func (ix *index) whole() *Changes {
	ix.refit()
	ix.changes = newChanges()
	for _, s := range ix.sets {
		ix.fill(s)
	}
	ix.fillNamed()
	for _, p := range ix.local {
		for _, a := range p.addrs {
			if ix.owner[a] == p {
				ix.verdicts(p, a, true)
			}
		}
	}
	c := ix.changes
	ix.changes = newChanges()
	for _, s := range c.Sets {
		s.Existed = false
	}
	for name, ch := range ix.active {
		c.Chains[name] = &ChainChange{Now: ch}
	}
	return c
}

func (ix *index) namespace(name string) *namespace {
	ns := ix.namespaces[name]
	if ns == nil {
		ns = &namespace{pods: map[cache.ObjectName]*pod{}, policies: map[cache.ObjectName]*policy{}, sets: map[*set]bool{}}
		ix.namespaces[name] = ns
	}
	return ns
}

// forget drops a namespace that nothing is in and nothing is known of.
func (ix *index) forget(name string) {
	if ns := ix.namespaces[name]; ns != nil && !ns.exists && len(ns.pods)+len(ns.policies)+len(ns.sets) == 0 {
		delete(ix.namespaces, name)
	}
}

// setNamespace takes over a Namespace's labels, or that it is gone.
func (ix *index) setNamespace(name string, l labels.Set, exists bool) {
	ns := ix.namespace(name)
	defer ix.forget(name)
	if ns.exists == exists && labels.Equals(ns.labels, l) {
		return
	}
	ns.labels, ns.exists = l, exists
	for s := range ix.wide {
		was, is := ns.sets[s], exists && s.peers.namespaces.Matches(l)
		if was == is {
			continue
		}
		if is {
			ns.sets[s] = true
		} else {
			delete(ns.sets, s)
		}
		ix.members(s, ns, is)
	}
}

// members puts a namespace's pods into a set, or takes them out.
func (ix *index) members(s *set, ns *namespace, in bool) {
	for _, p := range ns.pods {
		if !s.peers.pods.Matches(p.labels) {
			continue
		}
		for _, a := range p.addrs {
			if ix.owner[a] == p {
				ix.change(s).member(Element{Addr: a}, in)
			}
		}
	}
}

// change is what becomes of a set.
func (ix *index) change(s *set) *SetChange {
	c := ix.changes.Sets[s.id]
	if c == nil {
		c = &SetChange{Kind: s.kind, Existed: true, Exists: true, Blocks: s.blocks, Ports: s.ports}
		ix.changes.Sets[s.id] = c
	}
	return c
}

// acquire makes a set be there for one more chain.
func (ix *index) acquire(spec setSpec) {
	if s := ix.sets[spec.id]; s != nil {
		s.users++
		return
	}
	s := &set{setSpec: spec, users: 1}
	ix.sets[spec.id] = s
	switch s.kind {
	case Addresses:
		if s.peers.namespaces == nil {
			ix.namespace(s.peers.namespace).sets[s] = true
			break
		}
		ix.wide[s] = true
		for _, ns := range ix.namespaces {
			if ns.exists && s.peers.namespaces.Matches(ns.labels) {
				ns.sets[s] = true
			}
		}
	case NamedPorts:
		ix.named[s.name] = s
	}
	was := ix.changes.Sets[s.id]
	ix.fill(s)
	c := ix.changes.Sets[s.id]
	c.Existed = was != nil && was.Existed
	c.Refill = c.Existed
}

// fill notes all members of a set, anew.
func (ix *index) fill(s *set) {
	delete(ix.changes.Sets, s.id)
	c := ix.change(s)
	switch s.kind {
	case Addresses:
		if s.peers.namespaces == nil {
			ix.members(s, ix.namespace(s.peers.namespace), true)
			return
		}
		for _, ns := range ix.namespaces {
			if ns.sets[s] {
				ix.members(s, ns, true)
			}
		}
	case NamedPorts:
		ix.unfilled[s] = true
	case Own:
		for _, p := range ix.local {
			for _, a := range p.addrs {
				if ix.owner[a] == p {
					c.member(Element{Addr: a}, true)
				}
			}
		}
	}
}

// fillNamed notes the members of the sets of named ports that are new: it goes through
// the pods' ports once, however many sets there are.
func (ix *index) fillNamed() {
	if len(ix.unfilled) == 0 {
		return
	}
	for s := range ix.unfilled {
		ix.change(s).Elements = nil // what has come and gone since
	}
	for a, p := range ix.owner {
		for _, port := range p.ports {
			if s := ix.named[port.portName]; s != nil && ix.unfilled[s] {
				ix.change(s).member(Element{a, port.protocol, port.number}, true)
			}
		}
	}
	clear(ix.unfilled)
}

// release gives back what acquire took.
func (ix *index) release(spec setSpec) {
	s := ix.sets[spec.id]
	if s.users--; s.users > 0 {
		return
	}
	delete(ix.sets, s.id)
	switch s.kind {
	case Addresses:
		delete(ix.wide, s)
		if s.peers.namespaces == nil {
			delete(ix.namespace(s.peers.namespace).sets, s)
			ix.forget(s.peers.namespace)
			break
		}
		for _, ns := range ix.namespaces {
			delete(ns.sets, s)
		}
	case NamedPorts:
		delete(ix.named, s.name)
		delete(ix.unfilled, s)
	}
	c := ix.change(s)
	c.Exists, c.Elements = false, nil
}

// chain notes what becomes of a chain.
func (ix *index) chain(name string, now *Chain) {
	c := ix.changes.Chains[name]
	if c == nil {
		c = &ChainChange{Existed: ix.active[name] != nil}
		ix.changes.Chains[name] = c
	}
	c.Now = now
	if now == nil {
		delete(ix.active, name)
	} else {
		ix.active[name] = now
	}
}

// hold makes a policy be in force here for one more pod; drop for one less.
func (ix *index) hold(p *policy) {
	if p.pods++; p.pods > 1 {
		return
	}
	if err := ix.fits(p); err != nil {
		ix.refuse(p, err)
		return
	}
	ix.enforce(p)
}

func (ix *index) enforce(p *policy) {
	ix.namespace(p.name.Namespace).size += p.size()
	for _, d := range directions {
		if p.isolates[d] {
			for _, s := range p.sets[d] {
				ix.acquire(s)
			}
			ix.chain(policyChain(p.name, d), p.chains[d])
		}
	}
}

func (ix *index) drop(p *policy) {
	if p.pods--; p.pods > 0 {
		return
	}
	if p.full != nil {
		p.full = nil
		delete(ix.full, p)
		return
	}
	ix.namespace(p.name.Namespace).size -= p.size()
	ix.freed = true
	for _, d := range directions {
		if p.isolates[d] {
			for _, s := range p.sets[d] {
				ix.release(s)
			}
			// By now the chain may be that of what the policy has become.
			if name := policyChain(p.name, d); ix.active[name] == p.chains[d] {
				ix.chain(name, nil)
			}
		}
	}
}

// join gives the chain of pods that these policies select, one more of them.
func (ix *index) join(d Direction, policies []*policy) string {
	jumps, isolated := []string{}, false // not nil: a chain of pods has jumps, also if none
	for _, p := range policies {
		isolated = isolated || p.isolates[d]
		if p.isolates[d] && p.full == nil {
			jumps = append(jumps, policyChain(p.name, d))
		}
	}
	if !isolated {
		return ""
	}
	name := "pods-" + d.String() + "-" + hash(jumps...)
	ch := ix.chains[name]
	if ch == nil {
		ch = &podChain{Chain: Chain{Direction: d, Jumps: jumps}}
		ix.chains[name] = ch
		ix.chain(name, &ch.Chain)
	}
	ch.pods++
	return name
}

func (ix *index) leave(name string) {
	ch := ix.chains[name]
	if ch == nil {
		return
	}
	if ch.pods--; ch.pods == 0 {
		delete(ix.chains, name)
		ix.chain(name, nil)
	}
}

// bind gives a pod of this node its policies and chains.
func (ix *index) bind(p *pod) {
	if !p.local {
		return
	}
	for _, pol := range ix.namespaces[p.name.Namespace].policies {
		if pol.selects.Matches(p.labels) {
			p.policies = append(p.policies, pol)
		}
	}
	slices.SortFunc(p.policies, func(a, b *policy) int { return strings.Compare(a.name.Name, b.name.Name) })
	for _, pol := range p.policies {
		ix.hold(pol)
	}
	for _, d := range directions {
		p.chains[d] = ix.join(d, p.policies)
	}
}

// unbind gives them back.
func (ix *index) unbind(policies []*policy, chains [2]string) {
	for _, name := range chains {
		ix.leave(name)
	}
	for _, pol := range policies {
		ix.drop(pol)
	}
}

// setPod takes over a pod; nil: it is gone, or has no network of its own.
func (ix *index) setPod(name cache.ObjectName, now *pod) {
	was := ix.pods[name]
	if now != nil {
		ix.identify(now)
		ix.attach(now)
		if was != nil && was.same(now) {
			return
		}
	}
	ns := ix.namespace(name.Namespace)
	if now != nil { // first, so that what both need stays
		ix.bind(now)
		ix.pods[name], ns.pods[name] = now, now
	} else {
		delete(ix.pods, name)
		delete(ns.pods, name)
	}
	if was != nil {
		for _, a := range was.addrs {
			ix.unclaim(was, a)
		}
		ix.unbind(was.policies, was.chains)
		if ix.local[was.uid] == was {
			delete(ix.local, was.uid)
		}
		if now == nil || now.uid != was.uid {
			delete(ix.attached, was.uid)
		}
	}
	if now != nil {
		if now.local {
			ix.local[now.uid] = now
		}
		for _, a := range now.addrs {
			ix.claim(now, a)
		}
	}
	ix.forget(name.Namespace)
}

// identify leaves a uid to one pod of this node, whatever others say they are
// copies of.
func (ix *index) identify(p *pod) {
	q := ix.local[p.uid]
	switch {
	case !p.local || q == nil || q.name == p.name:
	case p.hasUID(q):
		for _, a := range q.addrs {
			ix.unclaim(q, a)
		}
		delete(ix.local, p.uid)
		q.uid, q.addrs, q.attached = q.object, q.status, false
		ix.identify(q) // which another may say it is
		ix.local[q.uid] = q
		for _, a := range q.addrs {
			ix.claim(q, a)
		}
	case p.isMirror():
		p.uid = p.object
		ix.identify(p)
	}
}

// attach gives a pod the addresses that the pod network has given it, until its
// status says the same.
func (ix *index) attach(p *pod) {
	has := ix.attached[p.uid]
	if !p.local || len(has) == 0 {
		return
	}
	if !slices.ContainsFunc(has, func(a netip.Addr) bool { return !slices.Contains(p.addrs, a) }) {
		delete(ix.attached, p.uid)
		return
	}
	p.addrs, p.attached = slices.Clone(has), true
}

// maxAttached bounds what is remembered of pods that the API has not shown yet.
const maxAttached = 1024

// setAttached takes over an address that the pod network has given to a pod of
// this node. It says whether the pod is known.
func (ix *index) setAttached(uid types.UID, a netip.Addr) bool {
	p := ix.local[uid]
	if p != nil && slices.Contains(p.addrs, a) && ix.owner[a] == p {
		return true
	}
	if len(ix.attached) >= maxAttached {
		maps.DeleteFunc(ix.attached, func(uid types.UID, _ []netip.Addr) bool { return ix.local[uid] == nil })
	}
	has := slices.DeleteFunc(slices.Clone(ix.attached[uid]), func(b netip.Addr) bool { return b.BitLen() == a.BitLen() })
	ix.attached[uid] = append(has, a)
	if p == nil {
		return false
	}
	now := *p
	now.policies, now.chains = nil, [2]string{}
	ix.setPod(p.name, &now)
	return true
}

// setPolicy takes over a policy; nil: it is gone.
func (ix *index) setPolicy(name cache.ObjectName, now *policy) {
	was := ix.policies[name]
	if was != nil && now != nil && equality.Semantic.DeepEqual(was.spec, now.spec) {
		return
	}
	ns := ix.namespace(name.Namespace)
	if now != nil {
		ix.policies[name], ns.policies[name] = now, now
	} else {
		delete(ix.policies, name)
		delete(ns.policies, name)
	}
	for _, p := range ns.pods {
		if p.local && (slices.Contains(p.policies, was) || now != nil && now.selects.Matches(p.labels)) {
			ix.rebind(p)
		}
	}
	ix.forget(name.Namespace)
}

// rebind gives a pod the policies that select it now.
func (ix *index) rebind(p *pod) {
	policies, chains := p.policies, p.chains
	p.policies, p.chains = nil, [2]string{}
	ix.bind(p) // first, so that what both need stays
	for _, a := range p.addrs {
		if ix.owner[a] == p {
			for _, d := range directions {
				ix.changes.lead(d, a, chains[d], p.chains[d])
			}
		}
	}
	ix.unbind(policies, chains)
}

// claim gives an address to a pod, unless another has more right to it.
func (ix *index) claim(p *pod, a netip.Addr) {
	switch cur := ix.owner[a]; {
	case cur == nil:
	case p.before(cur):
		ix.lead(cur, a, false)
		ix.others[a] = append(ix.others[a], cur)
	default:
		ix.others[a] = append(ix.others[a], p)
		return
	}
	ix.owner[a] = p
	ix.lead(p, a, true)
}

// unclaim takes it back, and gives it to the next.
func (ix *index) unclaim(p *pod, a netip.Addr) {
	others := ix.others[a]
	if ix.owner[a] == p {
		ix.lead(p, a, false)
		delete(ix.owner, a)
		if len(others) == 0 {
			return
		}
		next := others[0]
		for _, q := range others[1:] {
			if q.before(next) {
				next = q
			}
		}
		ix.owner[a] = next
		ix.lead(next, a, true)
		p = next
	}
	if others = slices.DeleteFunc(others, func(q *pod) bool { return q == p }); len(others) == 0 {
		delete(ix.others, a)
		return
	}
	ix.others[a] = others
}

// lead puts an address into the sets and maps that its pod is in, or takes it out.
func (ix *index) lead(p *pod, a netip.Addr, in bool) {
	for s := range ix.namespaces[p.name.Namespace].sets {
		if s.peers.pods.Matches(p.labels) {
			ix.change(s).member(Element{Addr: a}, in)
		}
	}
	for _, port := range p.ports {
		if s := ix.named[port.portName]; s != nil {
			ix.change(s).member(Element{a, port.protocol, port.number}, in)
		}
	}
	if p.local {
		ix.change(ix.sets[ownSet]).member(Element{Addr: a}, in)
		ix.verdicts(p, a, in)
	}
}

// verdicts leads an address to the chains of its pod, or away from them.
func (ix *index) verdicts(p *pod, a netip.Addr, in bool) {
	for _, d := range directions {
		switch {
		case p.chains[d] == "":
		case in:
			ix.changes.lead(d, a, "", p.chains[d])
		default:
			ix.changes.lead(d, a, p.chains[d], "")
		}
	}
}
