package gateway

import (
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/gateway/gatewayapi"
)

// nodesService is where the nodes' addresses are found.
var nodesService = types.NamespacedName{Namespace: Namespace, Name: serviceName}

// nodesIn are the nodes that the EndpointSlices of a Service that leads to them have.
func (w *world) nodesIn(service types.NamespacedName) (all []discoveryv1.Endpoint) {
	found, _ := w.details.slices.GetIndexer().ByIndex(byService, service.String()) // the index is there
	for _, o := range found {
		if s := o.(*discoveryv1.EndpointSlice); s.Labels[discoveryv1.LabelManagedBy] == sliceManager {
			all = append(all, s.Endpoints...)
		}
	}
	return all
}

// findNodes are the addresses of the nodes that are ready. On a node its zone is noted, in
// which endpoints may be meant for it: nodes may read no Nodes.
func (w *world) findNodes() (all []netip.Addr) {
	w.here = host{name: w.node}
	services := []types.NamespacedName{nodesService}
	for _, g := range w.api.all() {
		services = append(services, types.NamespacedName{Namespace: g.Namespace, Name: gatewayapi.ServiceName(g.Name)})
	}
	for i, service := range services {
		for _, e := range w.nodesIn(service) {
			if e.NodeName != nil && *e.NodeName == w.node && e.Zone != nil {
				w.here.zone = *e.Zone
			}
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil && i == 0 {
					all = append(all, a)
				}
			}
		}
		if w.here.zone != "" {
			break // they all say the same
		}
	}
	return all
}
