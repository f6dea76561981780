package endpointslice

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/controllermanager/backends"
	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/equal"
)

// changes are what makes the slices of a Service right.
type changes struct {
	create, update, remove []*discoveryv1.EndpointSlice
	notices                []notice
	perSlice               int // the most endpoints one slice holds
}

// A group is the endpoints of one address type and one list of ports: only
// those share slices.
type group struct {
	ports     []discoveryv1.EndpointPort
	endpoints map[types.UID]discoveryv1.Endpoint
}

// plan compares the pods of svc with its slices. zone is where a node is, ratios
// are the zones' shares of the CPUs, perSlice is the most endpoints one slice holds.
func plan(svc *corev1.Service, all []*corev1.Pod, zone func(string) string, ratios map[string]float64, have []*discoveryv1.EndpointSlice, perSlice int) (c changes) {
	c.perSlice = perSlice
	families := addressTypes(svc)
	for _, s := range have {
		if !slices.Contains(families, s.AddressType) {
			c.remove = append(c.remove, s)
		}
	}
	for _, family := range families {
		of := slices.DeleteFunc(slices.Clone(have), func(s *discoveryv1.EndpointSlice) bool { return s.AddressType != family })
		slices.SortFunc(of, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
		want := groups(svc, all, family, zone)
		c.topology(svc, family, want, of, ratios)
		c.family(svc, family, want, of)
	}
	return c
}

func addressTypes(svc *corev1.Service) (out []discoveryv1.AddressType) {
	for _, f := range svc.Spec.IPFamilies {
		switch f {
		case corev1.IPv4Protocol:
			out = append(out, discoveryv1.AddressTypeIPv4)
		case corev1.IPv6Protocol:
			out = append(out, discoveryv1.AddressTypeIPv6)
		}
	}
	if len(out) > 0 {
		return out
	}
	if strings.Contains(svc.Spec.ClusterIP, ":") {
		return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv6}
	}
	return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4}
}

func groups(svc *corev1.Service, all []*corev1.Pod, family discoveryv1.AddressType, zone func(string) string) map[string]*group {
	out := map[string]*group{}
	for _, p := range all {
		if !backends.Serves(p, true) {
			continue
		}
		addresses := backends.Addresses(p, family == discoveryv1.AddressTypeIPv6)
		if len(addresses) == 0 {
			continue
		}
		ports := portsOf(svc, p)
		key := backends.PortsKey(ports)
		g := out[key]
		if g == nil {
			g = &group{ports, map[types.UID]discoveryv1.Endpoint{}}
			out[key] = g
		}
		g.endpoints[p.UID] = endpoint(svc, p, addresses, zone)
	}
	return out
}

func endpoint(svc *corev1.Service, p *corev1.Pod, addresses []string, zone func(string) string) discoveryv1.Endpoint {
	serving, terminating := pods.Ready(p), p.DeletionTimestamp != nil
	ready := svc.Spec.PublishNotReadyAddresses || serving && !terminating
	ep := discoveryv1.Endpoint{
		Addresses:  addresses,
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		TargetRef:  backends.Reference(p),
	}
	if node := p.Spec.NodeName; node != "" {
		ep.NodeName = &node
		if z := zone(node); z != "" {
			ep.Zone = &z
		}
	}
	if name := backends.Hostname(p, svc); name != "" {
		ep.Hostname = &name
	}
	ep.Hints = hints(svc, &ep)
	return ep
}

// hints keep traffic where the Service wants it by its traffic distribution; its
// annotation comes before.
func hints(svc *corev1.Service, ep *discoveryv1.Endpoint) *discoveryv1.EndpointHints {
	want := svc.Spec.TrafficDistribution
	if want == nil || auto(svc) || !*ep.Conditions.Ready {
		return nil
	}
	h := &discoveryv1.EndpointHints{}
	switch *want {
	case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone:
	case corev1.ServiceTrafficDistributionPreferSameNode:
		if ep.NodeName != nil {
			h.ForNodes = []discoveryv1.ForNode{{Name: *ep.NodeName}}
		}
	default:
		return nil
	}
	if ep.Zone != nil {
		h.ForZones = []discoveryv1.ForZone{{Name: *ep.Zone}}
	}
	if h.ForZones == nil && h.ForNodes == nil {
		return nil
	}
	return h
}

func portsOf(svc *corev1.Service, p *corev1.Pod) []discoveryv1.EndpointPort {
	out := []discoveryv1.EndpointPort{}
	for i := range svc.Spec.Ports {
		port := &svc.Spec.Ports[i]
		n, ok := backends.Port(p, port)
		if !ok {
			continue
		}
		out = append(out, discoveryv1.EndpointPort{Name: &port.Name, Port: &n, Protocol: &port.Protocol, AppProtocol: port.AppProtocol})
	}
	return out
}

// family plans the slices of one address type.
func (c *changes) family(svc *corev1.Service, family discoveryv1.AddressType, want map[string]*group, have []*discoveryv1.EndpointSlice) {
	created, removed := len(c.create), []*discoveryv1.EndpointSlice(nil)
	of := map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range have {
		key := backends.PortsKey(s.Ports)
		if want[key] == nil {
			removed = append(removed, s)
			continue
		}
		of[key] = append(of[key], s)
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		removed = append(removed, c.group(svc, family, want[key], of[key])...)
	}
	if len(have) > len(removed) || len(c.create) > created {
		c.remove = append(c.remove, removed...)
		return
	}
	// A Service without endpoints keeps an empty slice, which says so.
	empty := newSlice(svc, family, []discoveryv1.EndpointPort{}, nil)
	for i, s := range removed {
		if len(s.Endpoints) == 0 && len(s.Ports) == 0 && maps.Equal(s.Labels, empty.Labels) {
			c.remove = append(c.remove, slices.Delete(removed, i, i+1)...)
			return
		}
	}
	c.create = append(c.create, empty)
	c.remove = append(c.remove, removed...)
}

// group plans the slices of one list of ports: each keeps what it has that is
// still wanted, so that the fewest slices change; it returns those left empty.
func (c *changes) group(svc *corev1.Service, family discoveryv1.AddressType, want *group, have []*discoveryv1.EndpointSlice) (removed []*discoveryv1.EndpointSlice) {
	left := maps.Clone(want.endpoints)
	labels := labelsOf(svc)
	type page struct {
		was, now *discoveryv1.EndpointSlice
		changed  bool
	}
	var pages []*page
	for _, s := range have {
		p := &page{was: s, now: s.DeepCopy()}
		p.now.Endpoints = p.now.Endpoints[:0]
		for _, ep := range s.Endpoints {
			uid := uidOf(ep)
			next, ok := left[uid]
			if !ok {
				p.changed = true
				continue
			}
			delete(left, uid)
			p.changed = p.changed || !equal.Objects(ep, next)
			p.now.Endpoints = append(p.now.Endpoints, next)
		}
		if !maps.Equal(s.Labels, labels) {
			p.now.Labels, p.changed = labels, true
		}
		pages = append(pages, p)
	}
	rest := slices.SortedFunc(maps.Values(left), func(a, b discoveryv1.Endpoint) int { return cmp.Compare(a.TargetRef.Name, b.TargetRef.Name) })
	fill := func(p *page) {
		n := min(c.perSlice-len(p.now.Endpoints), len(rest))
		if n > 0 {
			p.now.Endpoints, rest, p.changed = append(p.now.Endpoints, rest[:n]...), rest[n:], true
		}
	}
	for _, p := range pages { // those that change anyway first
		if p.changed {
			fill(p)
		}
	}
	for _, p := range pages { // then one with room for all, instead of another slice
		if !p.changed && len(rest) > 0 && len(rest) < c.perSlice && len(p.now.Endpoints)+len(rest) <= c.perSlice {
			fill(p)
		}
	}
	for len(rest) > 0 {
		n := min(c.perSlice, len(rest))
		c.create = append(c.create, newSlice(svc, family, want.ports, rest[:n]))
		rest = rest[n:]
	}
	for _, p := range pages {
		switch {
		case len(p.now.Endpoints) == 0:
			removed = append(removed, p.was)
		case p.changed:
			c.update = append(c.update, p.now)
		}
	}
	return removed
}

func uidOf(ep discoveryv1.Endpoint) types.UID {
	if ep.TargetRef == nil {
		return ""
	}
	return ep.TargetRef.UID
}

func labelsOf(svc *corev1.Service) map[string]string {
	out := maps.Clone(svc.Labels)
	if out == nil {
		out = map[string]string{}
	}
	delete(out, corev1.IsHeadlessService)
	if backends.Headless(svc) {
		out[corev1.IsHeadlessService] = ""
	}
	out[discoveryv1.LabelServiceName], out[discoveryv1.LabelManagedBy] = svc.Name, manager
	return out
}

func newSlice(svc *corev1.Service, family discoveryv1.AddressType, ports []discoveryv1.EndpointPort, endpoints []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	prefix := svc.Name + "-"
	if len(apivalidation.NameIsDNSSubdomain(prefix, true)) > 0 {
		prefix = svc.Name
	}
	if endpoints == nil {
		endpoints = []discoveryv1.Endpoint{}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: prefix, Namespace: svc.Namespace, Labels: labelsOf(svc),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(svc, corev1.SchemeGroupVersion.WithKind("Service"))},
		},
		AddressType: family, Ports: ports, Endpoints: slices.Clone(endpoints),
	}
}
