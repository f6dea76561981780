package gateway

import (
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/gateway/gatewayapi"
)

// portName is the name of a Gateway's port in its Service and EndpointSlices.
func portName(p gatewayapi.Port) string {
	if p.UDP {
		return "udp-" + strconv.Itoa(int(p.Number))
	}
	return "tcp-" + strconv.Itoa(int(p.Number))
}

// portOf is the port of such a name.
func portOf(name string) (p gatewayapi.Port, ok bool) {
	protocol, number, _ := strings.Cut(name, "-")
	n, err := strconv.ParseUint(number, 10, 16)
	return gatewayapi.Port{Number: uint16(n), UDP: protocol == "udp"}, err == nil && n > 0 && (protocol == "udp" || protocol == "tcp")
}

// place is where a Gateway is served on this node, as its EndpointSlices say, and what its
// Service's addresses are.
func (w *world) place(svc *corev1.Service, name types.NamespacedName) *gatewayapi.Place {
	if svc == nil || svc.Labels[managedBy] != us {
		return nil
	}
	p := &gatewayapi.Place{Ports: map[gatewayapi.Port]uint16{}, Public: svc.Status.LoadBalancer.Ingress, Challenge: svc.Annotations[accountAnnotation]}
	found, _ := w.details.slices.GetIndexer().ByIndex(byService, name.String()) // the index is there
	for _, o := range found {
		s := o.(*discoveryv1.EndpointSlice)
		if s.Labels[discoveryv1.LabelManagedBy] != sliceManager {
			continue
		}
		for _, port := range s.Ports {
			if port.Name == nil || port.Port == nil || *port.Port < firstPort || *port.Port > lastPort {
				continue
			}
			if of, ok := portOf(*port.Name); ok {
				p.Ports[of] = uint16(*port.Port)
			}
		}
		for _, e := range s.Endpoints {
			if e.NodeName == nil || *e.NodeName != w.node || len(e.Addresses) == 0 {
				continue
			}
			if a, err := netip.ParseAddr(e.Addresses[0]); err == nil {
				p.Addresses = append(p.Addresses, a)
			}
		}
	}
	return p
}
