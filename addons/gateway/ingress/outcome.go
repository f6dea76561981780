package ingress

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/gateway/route"
)

// An outcome is what a compilation has made of an Ingress, and what it has asked for that: if
// the answers are the same, so is the outcome, and of many thousands of Ingresses those
// that changed are compiled alone. What asks for more than is noted here is not known.
type outcome struct {
	used int // the round of the last compilation that had the Ingress

	want  *settings
	hosts []string
	// faults are those that were found with it, other than with its certificates.
	faults []Fault
	routes []route.Route
	paths  int
	// services and backends are what it has asked for and made, secured whether its hosts have
	// certificates, claims its paths.
	services []askedService
	backends []madeBackend
	secured  []askedHost
	claims   []claim
}

type askedService struct {
	name types.NamespacedName
	is   *corev1.Service
}

type madeBackend struct {
	key    string
	as     route.Backend
	target Target
}

type askedHost struct {
	name    string
	secured bool
}

// outcome is what was made of an Ingress, of this very state of it.
func (p *Parsed) outcome(ing *networkingv1.Ingress) *outcome {
	k := p.outcomes[ing]
	if k != nil {
		k.used = p.round
	}
	return k
}

// again takes over what is known of an Ingress, if that holds still.
func (c *compilation) again(s *subject) bool {
	k := s.known
	if k == nil || s.broken {
		return false
	}
	if c.paths[s.name.Namespace]+k.paths > MaxPathsEach {
		return c.anew(s)
	}
	for _, host := range s.hosts {
		if host != "" && c.owners[host] != s.name.Namespace {
			return c.anew(s)
		}
	}
	for _, a := range k.services {
		if c.Service(a.name) != a.is {
			return c.anew(s)
		}
	}
	for _, h := range k.secured {
		if c.secured(h.name) != h.secured {
			return c.anew(s)
		}
	}
	for _, at := range k.claims {
		if _, taken := c.claims[at]; taken || c.canaries[at.canary()] != nil {
			return c.anew(s)
		}
	}
	for _, at := range k.claims {
		c.claims[at] = s.name
	}
	for i := range k.backends {
		b := &k.backends[i]
		c.out.Backends[b.key], c.out.Targets[b.key] = b.as, b.target
	}
	c.paths[s.name.Namespace] += k.paths
	c.routes = append(c.routes, k.routes...)
	for _, f := range k.faults {
		s.note(f)
	}
	return true
}

// anew begins again with an Ingress of which too little is known: compiling it has changed
// what its annotations say.
func (c *compilation) anew(s *subject) bool {
	delete(c.Parsed.outcomes, s.ing)
	s.known = nil
	found := s.faults
	s.faults = nil
	s.guard(func() { s.read(c) })
	s.certified[0] = len(s.faults)
	for _, f := range found {
		s.note(f)
	}
	s.certified[1] = len(s.faults)
	return false
}

// remember compiles an Ingress and notes what was asked for it.
func (c *compilation) remember(s *subject) {
	s.asked = &outcome{used: c.Parsed.round, want: s.want, hosts: s.hosts}
	before, first := c.paths[s.name.Namespace], len(c.routes)
	c.serve(s)
	k := s.asked
	if s.asked = nil; k == nil {
		return
	}
	if len(s.faults) > maxFaults {
		return // some of them are not there
	}
	k.paths = c.paths[s.name.Namespace] - before
	k.routes = slices.Clone(c.routes[first:])
	k.faults = append(slices.Clone(s.faults[:s.certified[0]]), s.faults[s.certified[1]:]...)
	c.Parsed.outcomes[s.ing] = k
}

// asks notes that a compilation has asked for a Service.
func (s *subject) asks(name types.NamespacedName, is *corev1.Service) {
	if s.asked != nil {
		s.asked.services = append(s.asked.services, askedService{name, is})
	}
}

// unknown says that what is made of the Ingress depends on more than is noted.
func (s *subject) unknown() { s.asked = nil }
