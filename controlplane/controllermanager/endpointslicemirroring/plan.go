package endpointslicemirroring

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	netutils "k8s.io/utils/net"

	"knarr/controlplane/controllermanager/backends"
)

// changes are what makes the slices mirror an Endpoints.
type changes struct {
	create, update, remove []*discoveryv1.EndpointSlice
	invalid, over          int // addresses left out
}

// A host is one address; the same address of two pods is two hosts.
type host struct {
	ip  string
	uid types.UID
}

// A subset is hosts that all have the same ports.
type subset struct {
	ports []discoveryv1.EndpointPort
	ready map[host]bool
}

// canonical says the same as the subsets of an Endpoints, each port only once:
// ports of equal hosts are together, and a host that is not ready once is not.
func canonical(in []corev1.EndpointSubset) (out []subset, addresses map[host]corev1.EndpointAddress) {
	addresses = map[host]corev1.EndpointAddress{}
	byPort := map[string]*subset{}
	for _, s := range in {
		ports := make([]*corev1.EndpointPort, 0, len(s.Ports))
		for i := range s.Ports {
			ports = append(ports, &s.Ports[i])
		}
		if len(ports) == 0 {
			ports = append(ports, nil) // hosts without a port are hosts
		}
		for _, p := range ports {
			var mine []discoveryv1.EndpointPort
			if p != nil {
				p = p.DeepCopy()
				mine = []discoveryv1.EndpointPort{{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol}}
			}
			at := byPort[backends.PortsKey(mine)]
			if at == nil {
				at = &subset{mine, map[host]bool{}}
				byPort[backends.PortsKey(mine)] = at
			}
			add := func(list []corev1.EndpointAddress, ready bool) {
				for _, a := range list {
					h := host{ip: a.IP}
					if a.TargetRef != nil {
						h.uid = a.TargetRef.UID
					}
					if _, ok := addresses[h]; !ok {
						addresses[h] = a
					}
					was, ok := at.ready[h]
					at.ready[h] = ready && (was || !ok)
				}
			}
			add(s.Addresses, true)
			add(s.NotReadyAddresses, false)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(byPort)) {
		s := byPort[key]
		if i := slices.IndexFunc(out, func(o subset) bool { return maps.Equal(o.ready, s.ready) }); i >= 0 {
			out[i].ports = append(out[i].ports, s.ports...)
		} else {
			out = append(out, *s)
		}
	}
	return out, addresses
}

// A group is the endpoints of one list of ports and one address type.
type group struct {
	family    discoveryv1.AddressType
	ports     []discoveryv1.EndpointPort
	endpoints []discoveryv1.Endpoint
}

// plan compares an Endpoints with the slices that mirror it. perSubset is the most
// addresses of one list of ports that are mirrored.
func plan(ep *corev1.Endpoints, have []*discoveryv1.EndpointSlice, perSubset int) (c changes) {
	want := map[string]*group{}
	subsets, addresses := canonical(ep.Subsets)
	for _, s := range subsets {
		hosts := slices.SortedFunc(maps.Keys(s.ready), func(a, b host) int {
			switch {
			case s.ready[a] && !s.ready[b]: // the ready ones first
				return -1
			case s.ready[b] && !s.ready[a]:
				return 1
			}
			return cmp.Or(cmp.Compare(a.ip, b.ip), cmp.Compare(a.uid, b.uid))
		})
		added := 0
		for _, h := range hosts {
			if added == perSubset {
				c.over++
				continue
			}
			e, family, ok := endpoint(addresses[h], s.ready[h])
			if !ok {
				c.invalid++
				continue
			}
			added++
			key := groupKey(family, s.ports)
			if want[key] == nil {
				want[key] = &group{family: family, ports: s.ports}
			}
			want[key].endpoints = append(want[key].endpoints, e)
		}
	}
	slices.SortFunc(have, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range have {
		key := groupKey(s.AddressType, s.Ports)
		g := want[key]
		if g == nil {
			c.remove = append(c.remove, s)
			continue
		}
		delete(want, key)
		if next := mirror(ep, g, s); !apiequality.Semantic.DeepEqual(next, s) {
			c.update = append(c.update, next)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		// A slice that is not needed becomes one that is, if it can: its
		// address type is for ever.
		i := slices.IndexFunc(c.remove, func(s *discoveryv1.EndpointSlice) bool { return s.AddressType == want[key].family })
		if i < 0 {
			c.create = append(c.create, mirror(ep, want[key], nil))
			continue
		}
		c.update = append(c.update, mirror(ep, want[key], c.remove[i]))
		c.remove = slices.Delete(c.remove, i, i+1)
	}
	return c
}

func endpoint(a corev1.EndpointAddress, ready bool) (e discoveryv1.Endpoint, family discoveryv1.AddressType, ok bool) {
	ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(a.IP))
	if !ok {
		return e, "", false
	}
	ip = ip.Unmap()
	family = discoveryv1.AddressTypeIPv4
	if ip.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	e = discoveryv1.Endpoint{Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef: a.TargetRef, NodeName: a.NodeName}
	if a.Hostname != "" {
		e.Hostname = &a.Hostname
	}
	return e, family, true
}

// mirror is the slice of a group, or old made into it.
func mirror(ep *corev1.Endpoints, g *group, old *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ep.Namespace, GenerateName: prefix(ep.Name)}}
	if old != nil {
		s = old.DeepCopy()
	}
	s.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(ep, corev1.SchemeGroupVersion.WithKind("Endpoints"))}
	s.Labels, s.Annotations = map[string]string{}, map[string]string{}
	maps.Copy(s.Labels, ep.Labels)
	maps.Copy(s.Annotations, ep.Annotations)
	delete(s.Annotations, corev1.EndpointsLastChangeTriggerTime)
	delete(s.Annotations, corev1.LastAppliedConfigAnnotation)
	s.Labels[discoveryv1.LabelServiceName], s.Labels[discoveryv1.LabelManagedBy] = ep.Name, manager
	s.AddressType, s.Ports, s.Endpoints = g.family, g.ports, g.endpoints
	return s
}

func prefix(name string) string {
	if p := name + "-"; len(apivalidation.NameIsDNSSubdomain(p, true)) == 0 {
		return p
	}
	return name
}

func groupKey(family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) string {
	return string(family) + " " + backends.PortsKey(ports)
}
