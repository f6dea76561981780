package dns

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	serviceNamespace = "kube-system"
	serviceName      = "kube-dns"
)

// announce puts this server behind the Service kube-dns, by an EndpointSlice of
// its node.
func (s *Server) announce(ctx context.Context) error {
	at := s.cfg.Listen[0]
	addressType := discoveryv1.AddressTypeIPv4
	if at.Addr().Is6() {
		addressType = discoveryv1.AddressTypeIPv6
	}
	port := func(name string, p corev1.Protocol) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Protocol: &p, Port: new(int32(at.Port()))}
	}
	want := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: serviceNamespace, Name: serviceName + "-" + s.cfg.NodeName, Labels: map[string]string{
			discoveryv1.LabelServiceName: serviceName, discoveryv1.LabelManagedBy: "dns.knarr.io", "k8s-app": serviceName,
		}},
		AddressType: addressType,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{at.Addr().String()}, NodeName: &s.cfg.NodeName,
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		}},
		Ports: []discoveryv1.EndpointPort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
	}
	slices := s.client.DiscoveryV1().EndpointSlices(serviceNamespace)
	have, err := slices.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = slices.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && !(reflect.DeepEqual(have.Endpoints, want.Endpoints) && reflect.DeepEqual(have.Ports, want.Ports)):
		want.ResourceVersion = have.ResourceVersion
		_, err = slices.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("dns: announce: %w", err)
	}
	return nil
}
