package extension

import (
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/apiserver/watchcache"
)

// ResolveService finds Services by their cluster addresses, as the cache knows
// them.
func ResolveService(cache *watchcache.Cache) Resolver {
	return func(namespace, name string, port int32) (string, error) {
		services := cache.Resource(corev1.SchemeGroupVersion.WithResource("services"))
		svc, ok := watchcache.Read[*corev1.Service](services, namespace+"/"+name)
		if !ok {
			return "", fmt.Errorf("service %q not found", name)
		}
		switch svc.Spec.Type {
		case "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		case corev1.ServiceTypeExternalName:
			return net.JoinHostPort(svc.Spec.ExternalName, strconv.Itoa(int(port))), nil
		default:
			return "", fmt.Errorf("unsupported service type %q", svc.Spec.Type)
		}
		if svc.Spec.ClusterIP == corev1.ClusterIPNone {
			return "", fmt.Errorf("cannot route to service with ClusterIP %q", svc.Spec.ClusterIP)
		}
		for _, p := range svc.Spec.Ports {
			if p.Port == port {
				return net.JoinHostPort(svc.Spec.ClusterIP, strconv.Itoa(int(port))), nil
			}
		}
		return "", fmt.Errorf("no service port %d found for service %q", port, name)
	}
}
