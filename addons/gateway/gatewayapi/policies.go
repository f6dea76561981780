package gatewayapi

import (
	"crypto/x509"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/route"
)

// A policy is a BackendTLSPolicy.
type policy struct {
	*gw.BackendTLSPolicy
	name       types.NamespacedName
	accepted   verdict
	references verdict
	cas        *x509.CertPool
	system     bool
	gateways   []types.NamespacedName // whose routes lead to what it is about
}

// A policyTarget is a Service, or a port of one.
type policyTarget struct {
	service types.NamespacedName
	port    string
}

type policies struct {
	all []*policy
	by  map[policyTarget]*policy
	// named are all by their names.
	named map[types.NamespacedName]*policy
	// losers are those that another one goes before, by that one.
	losers map[*policy][]*policy
}

// readPolicies finds what each is about. Of two for the same port the older one holds.
func (c *compilation) readPolicies() policies {
	p := policies{by: map[policyTarget]*policy{}, named: map[types.NamespacedName]*policy{}, losers: map[*policy][]*policy{}}
	for _, of := range c.Policies {
		one := &policy{BackendTLSPolicy: of, name: nameOf(of)}
		p.all, p.named[one.name] = append(p.all, one), one
		c.judgePolicy(one)
		holds := false
		var lost *policy
		for _, t := range of.Spec.TargetRefs {
			if t.Group != "" || t.Kind != "Service" {
				continue
			}
			at := policyTarget{service: types.NamespacedName{Namespace: of.Namespace, Name: string(t.Name)}}
			if t.SectionName != nil {
				at.port = string(*t.SectionName)
			}
			if before := p.by[at]; before != nil {
				lost = before
				continue
			}
			p.by[at], holds = one, true
		}
		if lost != nil && !holds {
			one.accepted = verdict{string(gw.PolicyReasonConflicted), "the older policy " + lost.name.String() + " is about the same Service"}
			p.losers[lost] = append(p.losers[lost], one)
		}
	}
	return p
}

func (c *compilation) judgePolicy(p *policy) {
	v := p.Spec.Validation
	if w := v.WellKnownCACertificates; w != nil {
		if p.system = *w == gw.WellKnownCACertificatesSystem; !p.system {
			p.accepted = verdict{string(gw.PolicyReasonInvalid), "there are no well-known authorities of that name"}
		}
		return
	}
	for _, ref := range v.CACertificateRefs {
		if ref.Group != "" || ref.Kind != "ConfigMap" {
			p.references = verdict{string(gw.BackendTLSPolicyReasonInvalidKind), "authorities are read from ConfigMaps"}
			continue
		}
		found, err := c.authoritiesIn(types.NamespacedName{Namespace: p.Namespace, Name: string(ref.Name)})
		if err != nil {
			p.references = verdict{string(gw.BackendTLSPolicyReasonInvalidCACertificateRef), err.Error()}
			continue
		}
		if p.cas == nil {
			p.cas = x509.NewCertPool()
		}
		for _, cert := range found {
			p.cas.AddCert(cert)
		}
	}
	if p.cas == nil {
		p.accepted = verdict{string(gw.BackendTLSPolicyReasonNoValidCACertificate), "there is no authority by which the backend could be known"}
	}
}

// of is the policy of a port: its own, or that of the whole Service.
func (p *policies) of(service types.NamespacedName, port string) *policy {
	if one := p.by[policyTarget{service, port}]; one != nil && port != "" {
		return one
	}
	return p.by[policyTarget{service: service}]
}

// use notes that a Gateway's routes lead to what a policy is about.
func (p *policies) use(one *policy, g types.NamespacedName) {
	for _, each := range append([]*policy{one}, p.losers[one]...) {
		if !slices.Contains(each.gateways, g) {
			each.gateways = append(each.gateways, g)
		}
	}
}

func (p *policy) refused() bool { return p.accepted.reason != "" }

// apply makes a backend speak TLS as the policy says.
func (p *policy) apply(b *route.Backend) {
	b.Protocol, b.ServerName, b.CAs, b.SystemCAs = route.BackendHTTPS, string(p.Spec.Validation.Hostname), p.cas, p.system
	for _, n := range p.Spec.Validation.SubjectAltNames {
		switch n.Type {
		case gw.HostnameSubjectAltNameType:
			b.Names = append(b.Names, string(n.Hostname))
		case gw.URISubjectAltNameType:
			b.Names = append(b.Names, string(n.URI))
		}
	}
}

// finishPolicies is the status of those that routes have led to.
func (c *compilation) finishPolicies() {
	const most = 16 // ancestors that a status can have
	group, kind := gw.Group(gw.GroupName), gw.Kind("Gateway")
	for _, p := range c.policies.all {
		var all []gw.PolicyAncestorStatus
		accepted := condition(p.Generation, string(gw.PolicyConditionAccepted), true, string(gw.PolicyReasonAccepted), "the policy is followed")
		resolved := condition(p.Generation, string(gw.BackendTLSPolicyConditionResolvedRefs), true, string(gw.BackendTLSPolicyReasonResolvedRefs), "all references are resolved")
		if v := p.accepted; v.reason != "" {
			accepted = condition(p.Generation, accepted.Type, false, v.reason, v.message)
		}
		if v := p.references; v.reason != "" {
			resolved = condition(p.Generation, resolved.Type, false, v.reason, v.message)
		}
		for _, g := range p.gateways[:min(len(p.gateways), most)] {
			namespace := gw.Namespace(g.Namespace)
			all = append(all, gw.PolicyAncestorStatus{
				AncestorRef:    gw.ParentReference{Group: &group, Kind: &kind, Namespace: &namespace, Name: gw.ObjectName(g.Name)},
				ControllerName: Controller, Conditions: []metav1.Condition{accepted, resolved},
			})
		}
		c.out.Statuses.Policies[p.name] = all
	}
}
