// Package backend finds the server behind a Service, for webhooks and
// aggregated APIs. It reads Services and EndpointSlices in the cache and
// writes nothing.
package backend

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"knarr/controlplane/apiserver/watchcache"
)

// ErrNone says that no server is ready.
var ErrNone = errors.New("no endpoints available")

// Find is the address of one server that is ready behind a Service's port,
// chosen at random.
func Find(cache *watchcache.Cache, namespace, name string, port int32) (string, error) {
	svc, ok := watchcache.Read[*corev1.Service](cache.Resource(corev1.SchemeGroupVersion.WithResource("services")), namespace+"/"+name)
	if !ok {
		return "", apierrors.NewNotFound(corev1.Resource("service"), name)
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return join(svc.Spec.ExternalName, port), nil
	}
	servicePort, err := PortOf(svc, port)
	if err != nil {
		return "", err
	}
	var ready []string
	slices := cache.Resource(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"))
	watchcache.Each(slices, namespace, func(s *discoveryv1.EndpointSlice) bool {
		if s.Labels[discoveryv1.LabelServiceName] == name {
			ready = append(ready, addresses(s, servicePort.Name)...)
		}
		return true
	})
	if len(ready) == 0 {
		return "", fmt.Errorf("%w for service %q", ErrNone, name)
	}
	return ready[rand.IntN(len(ready))], nil
}

// PortOf is the port of a Service by its number.
func PortOf(svc *corev1.Service, number int32) (*corev1.ServicePort, error) {
	for i := range svc.Spec.Ports {
		if p := &svc.Spec.Ports[i]; p.Port == number {
			return p, nil
		}
	}
	return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, svc.Name))
}

// addresses are the servers of a slice that are ready. None of them may lead
// to this host itself.
func addresses(s *discoveryv1.EndpointSlice, portName string) (out []string) {
	for _, p := range s.Ports {
		if p.Port == nil || p.Name == nil && portName != "" || p.Name != nil && *p.Name != portName {
			continue
		}
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready || len(e.Addresses) == 0 {
				continue
			}
			if addr, err := netip.ParseAddr(e.Addresses[0]); err != nil || addr.Unmap().IsLoopback() || addr.Unmap().IsLinkLocalUnicast() || addr.IsUnspecified() {
				continue
			}
			out = append(out, join(e.Addresses[0], *p.Port))
		}
	}
	return out
}

func join(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }
