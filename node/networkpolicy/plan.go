package networkpolicy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// A policy is a NetworkPolicy as this node works with it.
type policy struct {
	name     cache.ObjectName
	spec     *networkingv1.NetworkPolicySpec
	selects  labels.Selector
	isolates [2]bool      // by Direction
	sets     [2][]setSpec // that its chains look up
	chains   [2]*Chain
	err      error // why it allows nothing

	pods int   // of this node that it selects
	full error // why there is no room for it
}

// A setSpec says what a set shall hold. Sets of the same content have the same
// id, whichever policies look them up.
type setSpec struct {
	id     string
	kind   Kind
	peers  *selector
	name   portName
	blocks []Range
	ports  []PortRange
}

// A selector is that of a peer: pods of one namespace, or of those that match.
type selector struct {
	namespace  string
	namespaces labels.Selector // nil: the one namespace
	pods       labels.Selector
}

// What one policy may be in the kernel, in each direction: each packet of a new
// connection may pass all rules, while ranges are looked up at once.
const (
	maxMatches = 1000
	maxRanges  = 200_000
)

var errNoPeer = errors.New("a peer has neither podSelector nor namespaceSelector nor ipBlock")

// plan makes a policy of an object. Whatever cannot be made sense of isolates
// the pods and allows nothing. Pure.
func plan(np *networkingv1.NetworkPolicy) *policy {
	p := &policy{name: cache.MetaObjectToName(np), spec: &np.Spec}
	p.isolates = isolates(&np.Spec)
	var err error
	if p.selects, err = metav1.LabelSelectorAsSelector(&np.Spec.PodSelector); err != nil {
		p.selects, p.err = labels.Everything(), fmt.Errorf("podSelector: %w", err)
	}
	b := builder{namespace: np.Namespace}
	for _, d := range directions {
		p.chains[d] = &Chain{Direction: d, Policy: p.name}
	}
	if p.err == nil && p.isolates[Ingress] {
		for i, r := range np.Spec.Ingress {
			b.rule(fmt.Sprintf("ingress[%d]", i), r.From, r.Ports)
		}
		p.chains[Ingress].Rules, p.sets[Ingress] = b.take()
	}
	if p.err == nil && p.isolates[Egress] {
		for i, r := range np.Spec.Egress {
			b.rule(fmt.Sprintf("egress[%d]", i), r.To, r.Ports)
		}
		p.chains[Egress].Rules, p.sets[Egress] = b.take()
	}
	if p.err = errors.Join(p.err, b.err); p.err != nil {
		for _, d := range directions {
			p.chains[d].Rules, p.sets[d] = nil, nil
		}
	}
	return p
}

// isolates says in which directions: as the policy says or, if it does not,
// ingress always and egress if it has rules for it.
func isolates(spec *networkingv1.NetworkPolicySpec) (is [2]bool) {
	if len(spec.PolicyTypes) == 0 {
		return [2]bool{Ingress: true, Egress: len(spec.Egress) > 0}
	}
	is[Ingress] = slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	is[Egress] = slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	return is
}

// A builder gathers the matches and sets of one direction.
type builder struct {
	namespace string
	matches   []Match
	sets      []setSpec
	ranges    int
	err       error
}

func (b *builder) take() ([]Match, []setSpec) {
	m, s := b.matches, b.sets
	slices.SortFunc(s, func(x, y setSpec) int { return strings.Compare(x.id, y.id) })
	s = slices.CompactFunc(s, func(x, y setSpec) bool { return x.id == y.id })
	b.matches, b.sets = nil, nil
	return m, s
}

// rule adds what one rule allows: each of the peers at each of the ports.
func (b *builder) rule(where string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	if b.err != nil {
		return
	}
	sets, err := b.peers(peers)
	if err != nil {
		b.err = fmt.Errorf("%s: %w", where, err)
		return
	}
	matches, err := b.ports(ports)
	if err != nil {
		b.err = fmt.Errorf("%s: %w", where, err)
		return
	}
	if n := len(b.matches) + len(sets)*len(matches); n > maxMatches || b.ranges > maxRanges {
		b.err = fmt.Errorf("%s: %d combinations of peers and ports, %d ranges of addresses and ports; %d and %d are the most", where, n, b.ranges, maxMatches, maxRanges)
		return
	}
	for _, set := range sets {
		for _, m := range matches {
			m.Peers = set
			b.matches = append(b.matches, m)
		}
	}
}

// peers gives the sets of a rule's peers, one empty id for all the world.
func (b *builder) peers(peers []networkingv1.NetworkPolicyPeer) (ids []string, err error) {
	if len(peers) == 0 {
		return []string{""}, nil
	}
	var blocks []Range
	isBlock := false
	for _, p := range peers {
		if p.IPBlock != nil {
			r, err := rangesOf(p.IPBlock)
			if err != nil {
				return nil, err
			}
			blocks, isBlock = append(blocks, r...), true
			continue
		}
		s, err := b.selector(p)
		if err != nil {
			return nil, err
		}
		ids = append(ids, b.set(setSpec{kind: Addresses, peers: s}))
	}
	if isBlock {
		blocks = merge(blocks)
		b.ranges += len(blocks)
		ids = append(ids, b.set(setSpec{kind: Blocks, blocks: blocks}))
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

func (b *builder) selector(p networkingv1.NetworkPolicyPeer) (*selector, error) {
	if p.PodSelector == nil && p.NamespaceSelector == nil {
		return nil, errNoPeer
	}
	s := &selector{namespace: b.namespace, pods: labels.Everything()}
	var err error
	if p.PodSelector != nil {
		if s.pods, err = metav1.LabelSelectorAsSelector(p.PodSelector); err != nil {
			return nil, fmt.Errorf("podSelector: %w", err)
		}
	}
	if p.NamespaceSelector != nil {
		s.namespace = ""
		if s.namespaces, err = metav1.LabelSelectorAsSelector(p.NamespaceSelector); err != nil {
			return nil, fmt.Errorf("namespaceSelector: %w", err)
		}
	}
	return s, nil
}

// ports gives what a rule's ports are matched by: one range, or one set of
// ranges, and one set for each name. All policies share the set of a name, so that
// a port of a pod is in no more than one, however many names are looked up together.
func (b *builder) ports(list []networkingv1.NetworkPolicyPort) (all []Match, err error) {
	if len(list) == 0 {
		return []Match{{}}, nil
	}
	numbers, names, err := portsOf(list)
	if err != nil {
		return nil, err
	}
	switch b.ranges += len(numbers); len(numbers) {
	case 0:
	case 1:
		all = append(all, Match{Port: &numbers[0]})
	default:
		all = append(all, Match{Ports: b.set(setSpec{kind: Ports, ports: numbers})})
	}
	for _, n := range names {
		all = append(all, Match{Named: b.set(setSpec{kind: NamedPorts, name: n})})
	}
	return all, nil
}

// set notes a set and gives its id.
func (b *builder) set(s setSpec) string {
	h := sha256.New()
	switch s.kind {
	case Addresses:
		namespaces := ""
		if s.peers.namespaces != nil {
			namespaces = "matching " + s.peers.namespaces.String()
		}
		fmt.Fprintf(h, "%q %q %q", s.peers.namespace, namespaces, s.peers.pods.String())
		s.id = "pods-"
	case Blocks:
		for _, r := range s.blocks {
			fmt.Fprintf(h, "%s-%s ", r.First, r.Last)
		}
		s.id = "blocks-"
	case Ports:
		fmt.Fprint(h, s.ports)
		s.id = "ports-"
	case NamedPorts:
		fmt.Fprintf(h, "%d %q", s.name.protocol, s.name.name)
		s.id = "named-ports-"
	}
	s.id += digest(h.Sum(nil))
	b.sets = append(b.sets, s)
	return s.id
}

// digest is long enough that nobody finds two contents with the same.
func digest(sum []byte) string { return hex.EncodeToString(sum[:16]) }

func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return digest(sum[:])
}

func policyChain(name cache.ObjectName, d Direction) string {
	return "policy-" + d.String() + "-" + hash(name.Namespace, name.Name)
}
