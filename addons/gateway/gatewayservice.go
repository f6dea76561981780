package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/gatewayapi"
	"knarr/internal/controller"
)

// Nodes serve Gateways at ports of this range, whose Services lead there.
const firstPort, lastPort = 24000, 24999

// gatewayLabel names the Gateway that a Service is of.
const gatewayLabel = "gateway.networking.k8s.io/gateway-name"

// A portKey is a port of a Gateway.
type portKey struct {
	gateway types.NamespacedName
	port    gatewayapi.Port
}

// allocate gives each port of the Gateways a number of nodes' own: the one that it has, or
// the first free one from where its name leads. What finds none is left out. Pure.
func allocate(want map[types.NamespacedName][]gatewayapi.Port, have map[portKey]int32) map[portKey]int32 {
	taken, out := map[int32]bool{}, map[portKey]int32{}
	var open []portKey
	for g, ports := range want {
		for _, p := range ports {
			key := portKey{g, p}
			if n, ok := have[key]; ok && n >= firstPort && n <= lastPort && !taken[n] {
				out[key], taken[n] = n, true
			} else {
				open = append(open, key)
			}
		}
	}
	slices.SortFunc(open, func(a, b portKey) int {
		return cmp.Or(strings.Compare(a.gateway.String(), b.gateway.String()), cmp.Compare(a.port.Number, b.port.Number), boolean(a.port.UDP)-boolean(b.port.UDP))
	})
	for _, key := range open {
		h := fnv.New32a()
		fmt.Fprint(h, key.gateway, key.port)
		const size = lastPort - firstPort + 1
		for i := range uint32(size) {
			n := firstPort + int32((h.Sum32()+i)%size)
			if !taken[n] {
				out[key], taken[n] = n, true
				break
			}
		}
	}
	return out
}

// allocated are the ports that EndpointSlices give Gateways.
func (t *statusTerm) allocated(want map[types.NamespacedName][]gatewayapi.Port) map[portKey]int32 {
	have := map[portKey]int32{}
	for g := range want {
		found, _ := t.details.slices.GetIndexer().ByIndex(byService, g.Namespace+"/"+gatewayapi.ServiceName(g.Name)) // the index is there
		for _, o := range found {
			s := o.(*discoveryv1.EndpointSlice)
			if s.Labels[discoveryv1.LabelManagedBy] != sliceManager {
				continue
			}
			for _, p := range s.Ports {
				if p.Name == nil || p.Port == nil {
					continue
				}
				if port, ok := portOf(*p.Name); ok {
					have[portKey{g, port}] = *p.Port
				}
			}
		}
	}
	return have
}

// keepServices makes the Services of Gateways, and removes those of Gateways that are not
// served any more.
func (t *statusTerm) keepServices(ctx context.Context, want map[types.NamespacedName][]gatewayapi.Port) error {
	ports := allocate(want, t.allocated(want))
	at := addresses(listOf[*corev1.Node](t.nodes))
	byName := map[types.NamespacedName]*gw.Gateway{}
	for _, g := range t.world.api.all() {
		byName[types.NamespacedName{Namespace: g.Namespace, Name: g.Name}] = g
	}
	var errs []error
	keep := map[types.NamespacedName]bool{}
	for name, list := range want {
		g := byName[name]
		if g == nil {
			continue
		}
		svc := gatewayService(g, list)
		keep[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = true
		if err := t.keepService(ctx, svc); err != nil {
			errs = append(errs, err)
			continue
		}
		internal := map[string]int32{}
		for _, p := range list {
			if n, ok := ports[portKey{name, p}]; ok {
				internal[portName(p)] = n
			}
		}
		if have := get[*corev1.Service](t.details.services, types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}); have != nil && have.Labels[managedBy] == us {
			errs = append(errs, t.public.lead(ctx, have, at, internal))
		}
	}
	for _, svc := range listOf[*corev1.Service](t.details.services) {
		if svc.Labels[managedBy] == us && svc.Labels[gatewayLabel] != "" && !keep[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] && svc.DeletionTimestamp == nil {
			err := t.Status.client.CoreV1().Services(svc.Namespace).Delete(ctx, svc.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(svc.UID))})
			if controller.IgnoreNotFound(err) != nil {
				errs = append(errs, fmt.Errorf("remove the Service %s/%s: %w", svc.Namespace, svc.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// keepService makes one, or brings it up to date. A user's of that name stays.
func (t *statusTerm) keepService(ctx context.Context, want *corev1.Service) error {
	client := t.Status.client.CoreV1().Services(want.Namespace)
	have := get[*corev1.Service](t.details.services, types.NamespacedName{Namespace: want.Namespace, Name: want.Name})
	switch {
	case have == nil:
		if _, err := client.Create(ctx, want, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make the Service %s/%s: %w", want.Namespace, want.Name, err)
		}
		return nil
	case have.Labels[managedBy] != us || have.DeletionTimestamp != nil || sameService(have, want):
		return nil
	}
	changed := have.DeepCopy()
	changed.Labels, changed.Annotations, changed.OwnerReferences = want.Labels, want.Annotations, want.OwnerReferences
	for i := range want.Spec.Ports { // node ports stay what they are
		for _, p := range have.Spec.Ports {
			if p.Name == want.Spec.Ports[i].Name {
				want.Spec.Ports[i].NodePort = p.NodePort
			}
		}
	}
	changed.Spec.Ports = want.Spec.Ports
	if _, err := client.Update(ctx, changed, metav1.UpdateOptions{}); controller.IgnoreNotFound(err) != nil {
		return fmt.Errorf("bring the Service %s/%s up to date: %w", want.Namespace, want.Name, err)
	}
	return nil
}

func sameService(have, want *corev1.Service) bool {
	return maps.Equal(have.Labels, want.Labels) && maps.Equal(have.Annotations, want.Annotations) && equality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences) &&
		slices.EqualFunc(have.Spec.Ports, want.Spec.Ports, func(a, b corev1.ServicePort) bool {
			return a.Name == b.Name && a.Port == b.Port && a.Protocol == b.Protocol
		})
}

// gatewayService is the Service of a Gateway, with what its infrastructure asks for. Pure.
func gatewayService(g *gw.Gateway, ports []gatewayapi.Port) *corev1.Service {
	dual := corev1.IPFamilyPolicyPreferDualStack
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.Namespace, Name: gatewayapi.ServiceName(g.Name), Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: gw.SchemeGroupVersion.String(), Kind: "Gateway", Name: g.Name, UID: g.UID, Controller: new(true)}},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, IPFamilyPolicy: &dual},
	}
	if i := g.Spec.Infrastructure; i != nil {
		for k, v := range i.Labels {
			svc.Labels[string(k)] = string(v)
		}
		for k, v := range i.Annotations {
			svc.Annotations[string(k)] = string(v)
		}
	}
	svc.Labels[managedBy] = us
	svc.Labels[gatewayLabel] = g.Name
	if len(g.Name) > 63 { // more than a label can say
		svc.Labels[gatewayLabel] = svc.Name
	}
	var wanted []string
	for _, a := range g.Spec.Addresses {
		if a.Value != "" {
			wanted = append(wanted, a.Value)
		}
	}
	if len(wanted) > 0 {
		svc.Annotations["knarr.io/load-balancer-ips"] = strings.Join(wanted, ",")
	}
	for _, p := range ports {
		protocol := corev1.ProtocolTCP
		if p.UDP {
			protocol = corev1.ProtocolUDP
		}
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: portName(p), Port: int32(p.Number), Protocol: protocol})
	}
	slices.SortFunc(svc.Spec.Ports, func(a, b corev1.ServicePort) int { return strings.Compare(a.Name, b.Name) })
	return svc
}
