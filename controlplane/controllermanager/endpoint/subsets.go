package endpoint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/controllermanager/backends"
	"knarr/controlplane/controllermanager/pods"
)

// capacity is the most addresses one Endpoints holds.
const capacity = 1000

// An address is one pod's with the ports it has ready and not ready.
type address struct {
	corev1.EndpointAddress
	ready bool
	ports []corev1.EndpointPort
}

// subsets are the addresses of the pods of svc, those of equal ports together,
// in the order in which they are stored; over says that some were left out.
func subsets(svc *corev1.Service, all []*corev1.Pod) (out []corev1.EndpointSubset, over bool) {
	addresses := make([]address, 0, len(all))
	for _, p := range all {
		if a, ok := addressOf(svc, p); ok {
			addresses = append(addresses, a)
		}
	}
	slices.SortFunc(addresses, func(a, b address) int {
		return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(a.TargetRef.UID, b.TargetRef.UID))
	})
	if over = len(addresses) > capacity; over {
		slices.SortStableFunc(addresses, func(a, b address) int { // those that serve first
			switch {
			case a.ready == b.ready:
				return 0
			case a.ready:
				return -1
			}
			return 1
		})
		addresses = addresses[:capacity]
		slices.SortStableFunc(addresses, func(a, b address) int { return cmp.Compare(a.IP, b.IP) })
	}
	groups := map[string]*corev1.EndpointSubset{}
	for _, a := range addresses {
		key := portsKey(a.ports)
		s := groups[key]
		if s == nil {
			s = &corev1.EndpointSubset{Ports: a.ports}
			groups[key] = s
		}
		if a.ready {
			s.Addresses = append(s.Addresses, a.EndpointAddress)
		} else {
			s.NotReadyAddresses = append(s.NotReadyAddresses, a.EndpointAddress)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		out = append(out, *groups[key])
	}
	return out, over
}

func addressOf(svc *corev1.Service, p *corev1.Pod) (a address, ok bool) {
	if !backends.Serves(p, svc.Spec.PublishNotReadyAddresses) {
		return a, false
	}
	v6 := len(svc.Spec.IPFamilies) > 0 && svc.Spec.IPFamilies[0] == corev1.IPv6Protocol ||
		len(svc.Spec.IPFamilies) == 0 && strings.Contains(svc.Spec.ClusterIP, ":")
	ips := backends.Addresses(p, v6)
	if len(ips) == 0 {
		return a, false
	}
	for i := range svc.Spec.Ports {
		port := &svc.Spec.Ports[i]
		if n, ok := backends.Port(p, port); ok {
			a.ports = append(a.ports, corev1.EndpointPort{Name: port.Name, Port: n, Protocol: port.Protocol, AppProtocol: port.AppProtocol})
		}
	}
	if len(a.ports) == 0 && (len(svc.Spec.Ports) > 0 || svc.Spec.ClusterIP != corev1.ClusterIPNone) {
		return a, false
	}
	slices.SortFunc(a.ports, func(x, y corev1.EndpointPort) int { return cmp.Compare(portKey(x), portKey(y)) })
	a.EndpointAddress = corev1.EndpointAddress{IP: ips[0], Hostname: backends.Hostname(p, svc), TargetRef: backends.Reference(p)}
	if node := p.Spec.NodeName; node != "" {
		a.NodeName = &node
	}
	a.ready = svc.Spec.PublishNotReadyAddresses || pods.Ready(p)
	return a, true
}

func portKey(p corev1.EndpointPort) string {
	protocol := ""
	if p.AppProtocol != nil {
		protocol = *p.AppProtocol
	}
	return fmt.Sprintf("%s/%d/%s/%s", p.Name, p.Port, p.Protocol, protocol)
}

func portsKey(ports []corev1.EndpointPort) string {
	keys := make([]string, len(ports))
	for i, p := range ports {
		keys[i] = portKey(p)
	}
	return strings.Join(keys, ",")
}
