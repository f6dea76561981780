package servicelb

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// finalizer keeps a Service until its load balancer is deleted.
const finalizer = "service.kubernetes.io/load-balancer-cleanup"

// An action is what is to be done about a Service.
type action string

const (
	nothing action = "nothing"
	// ensure makes the load balancer or changes it.
	ensure action = "ensure"
	// update gives it other nodes.
	update action = "update"
	// cleanUp deletes it and removes the finalizer.
	cleanUp action = "clean up"
)

// applied is what of a Service the provider has seen.
type applied struct {
	service *corev1.Service
	// ensured says that the balancer was made as service says.
	ensured bool
	// nodes are its hosts, in the order of their names.
	nodes []host
	// round is the one of the nodes at that time.
	round uint64
}

// plan compares a Service with what the provider has seen of it; nil: nothing. Pure.
func plan(service *corev1.Service, last *applied, round uint64) action {
	switch {
	case needsCleanUp(service), !wants(service) && last != nil:
		return cleanUp
	case !wants(service), service.DeletionTimestamp != nil:
		return nothing
	case last == nil || !last.ensured || changed(last.service, service):
		return ensure
	case last.round != round:
		return update
	}
	return nothing
}

// wants reports whether the Service is for the provider's load balancers: a class
// names another implementation.
func wants(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass == nil
}

func needsCleanUp(s *corev1.Service) bool {
	return slices.Contains(s.Finalizers, finalizer) && (s.DeletionTimestamp != nil || s.Spec.Type != corev1.ServiceTypeLoadBalancer)
}

// changed reports whether something a load balancer is made of differs.
func changed(a, b *corev1.Service) bool {
	return a.UID != b.UID || wants(a) != wants(b) ||
		!equality.Semantic.DeepEqual(parts(a), parts(b)) || !equality.Semantic.DeepEqual(a.Annotations, b.Annotations)
}

// parts are the fields of a specification that a load balancer is made of.
func parts(s *corev1.Service) corev1.ServiceSpec {
	return corev1.ServiceSpec{
		Ports: s.Spec.Ports, LoadBalancerSourceRanges: s.Spec.LoadBalancerSourceRanges,
		SessionAffinity: s.Spec.SessionAffinity, SessionAffinityConfig: s.Spec.SessionAffinityConfig,
		LoadBalancerIP: s.Spec.LoadBalancerIP, ExternalIPs: s.Spec.ExternalIPs, ExternalTrafficPolicy: s.Spec.ExternalTrafficPolicy,
		HealthCheckNodePort: s.Spec.HealthCheckNodePort, IPFamilies: s.Spec.IPFamilies,
	}
}
