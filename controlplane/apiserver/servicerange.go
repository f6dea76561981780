package apiserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// nameOfKubernetes is that of the Service by which pods find the API server, and of the
// ServiceCIDR that the first server's flags were.
const nameOfKubernetes = "kubernetes"

// kubernetesService is the Service that pods find the API server by, its address, and the
// range that both are from.
func (s *Server) kubernetesService() []registry.Object {
	ip := s.kubernetesIP()
	family := corev1.IPv4Protocol
	if ip.Is6() {
		family = corev1.IPv6Protocol
	}
	port := s.cfg.Advertise.Port()
	return []registry.Object{
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: nameOfKubernetes}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: s.configuredRanges()}},
		&networkingv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{Name: ip.String(), Labels: map[string]string{
				"ipaddress.kubernetes.io/ip-family":  string(family),
				"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
			}},
			Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: corev1.NamespaceDefault, Name: nameOfKubernetes}},
		},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: nameOfKubernetes, Labels: map[string]string{"component": "apiserver", "provider": nameOfKubernetes}},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: ip.String(), ClusterIPs: []string{ip.String()},
				IPFamilies: []corev1.IPFamily{family}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
				SessionAffinity: corev1.ServiceAffinityNone,
				Ports:           []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt32(int32(port))}},
			},
		},
	}
}

func (s *Server) configuredRanges() (cidrs []string) {
	for _, p := range s.cfg.ServiceCIDRs {
		cidrs = append(cidrs, p.Masked().String())
	}
	return cidrs
}

// kubernetesIP is the address of the Service kubernetes: the one that it has, else the
// first of its range. A server that is started with another range changes neither.
func (s *Server) kubernetesIP() netip.Addr {
	svc, ok := watchcache.Read[*corev1.Service](s.cache.Resource(corev1.SchemeGroupVersion.WithResource("services")), corev1.NamespaceDefault+"/"+nameOfKubernetes)
	if ok {
		if ip, err := netip.ParseAddr(svc.Spec.ClusterIP); err == nil {
			return ip
		}
	}
	r, ok := watchcache.Read[*networkingv1.ServiceCIDR](s.cache.Resource(networkingv1.SchemeGroupVersion.WithResource("servicecidrs")), nameOfKubernetes)
	if ok && len(r.Spec.CIDRs) > 0 {
		if p, err := netip.ParsePrefix(r.Spec.CIDRs[0]); err == nil {
			return p.Masked().Addr().Next()
		}
	}
	return s.cfg.ServiceCIDRs[0].Masked().Addr().Next()
}

// refreshRange compares the stored default range with the flags', as upstream's server
// does: a second family is added, and of any other difference an Event tells, since
// Services have addresses of the stored one. want is changed.
func (s *Server) refreshRange(ctx context.Context, cached *watchcache.Resource, key string, old *watchcache.Record, have, want *networkingv1.ServiceCIDR) error {
	if have.DeletionTimestamp != nil {
		return nil
	}
	h := have.DeepCopy()
	switch {
	case len(want.Spec.CIDRs) == 2 && len(h.Spec.CIDRs) == 1 && want.Spec.CIDRs[0] == h.Spec.CIDRs[0]:
		slog.InfoContext(ctx, "the default ServiceCIDR becomes dual-stack", "from", h.Spec.CIDRs, "to", want.Spec.CIDRs)
		h.Spec.CIDRs = want.Spec.CIDRs
	case !slices.Equal(want.Spec.CIDRs, h.Spec.CIDRs):
		slog.WarnContext(ctx, "the default ServiceCIDR is not that of the flags, and stays", "servicecidr", key, "cidrs", h.Spec.CIDRs, "flags", want.Spec.CIDRs)
		return s.ensure(ctx, rangeEvent(h, fmt.Sprintf("The default ServiceCIDR %v does not match the controller flag configurations %s", h.Spec.CIDRs, want.Spec.CIDRs)))
	case meta.FindStatusCondition(h.Status.Conditions, networkingv1.ServiceCIDRConditionReady) != nil:
		return nil
	}
	if meta.FindStatusCondition(h.Status.Conditions, networkingv1.ServiceCIDRConditionReady) == nil { // of a cluster made before there was a condition
		h.Status.Conditions = want.Status.Conditions
	}
	_, err := cached.Update(ctx, key, old, h)
	if errors.Is(err, watchcache.ErrConflict) { // another server was first
		return nil
	}
	return err
}

// rangeEvent says once in the life of an Event, of whichever server, what is wrong.
func rangeEvent(about *networkingv1.ServiceCIDR, message string) *corev1.Event {
	sum := sha256.Sum256([]byte(string(about.UID) + message))
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: fmt.Sprintf("%s.%x", about.Name, sum[:8])},
		InvolvedObject: corev1.ObjectReference{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "ServiceCIDR",
			Name: about.Name, UID: about.UID, ResourceVersion: about.ResourceVersion},
		Reason: "KubernetesDefaultServiceCIDRInconsistent", Message: message, Type: corev1.EventTypeWarning, Count: 1,
		Source: corev1.EventSource{Component: "kubernetes-service-cidr-controller"}, FirstTimestamp: now, LastTimestamp: now,
	}
}
