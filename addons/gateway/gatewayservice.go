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
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/gatewayapi"
	"knarr/internal/controller"
	"knarr/internal/references"
)

// Nodes serve Gateways at ports of this range, whose Services lead there. portsEach is what
// the Gateways of one namespace may have of them.
const (
	firstPort, lastPort = 24000, 24999
	portsEach           = (lastPort - firstPort + 1) / 4
)

// gatewayLabel names the Gateway that a Service is of.
const gatewayLabel = "gateway.networking.k8s.io/gateway-name"

// allocate gives each port of the Gateways a number of nodes' own: the one that it has, or
// the first free one from where its name leads. Of those that have none yet the oldest
// Gateway's come first, and a namespace has its share at most. left are those that find
// none, with the reason. Pure.
func allocate(want map[types.NamespacedName][]gatewayapi.Port, have map[gatewayapi.GatewayPort]int32, since func(types.NamespacedName) time.Time) (given map[gatewayapi.GatewayPort]int32, left map[gatewayapi.GatewayPort]string) {
	var all []gatewayapi.GatewayPort
	for g, ports := range want {
		for _, p := range ports {
			all = append(all, gatewayapi.GatewayPort{Gateway: g, Port: p})
		}
	}
	slices.SortFunc(all, func(a, b gatewayapi.GatewayPort) int {
		return cmp.Or(since(a.Gateway).Compare(since(b.Gateway)), strings.Compare(a.Gateway.String(), b.Gateway.String()), cmp.Compare(a.Number, b.Number), boolean(a.UDP)-boolean(b.UDP))
	})
	given, left = map[gatewayapi.GatewayPort]int32{}, map[gatewayapi.GatewayPort]string{}
	taken, of := map[int32]bool{}, map[string]int{}
	give := func(key gatewayapi.GatewayPort, n int32) {
		given[key], taken[n] = n, true
		of[key.Gateway.Namespace]++
	}
	for _, key := range all {
		if n, ok := have[key]; ok && n >= firstPort && n <= lastPort && !taken[n] && of[key.Gateway.Namespace] < portsEach {
			give(key, n)
		}
	}
	for _, key := range all {
		if _, has := given[key]; has {
			continue
		}
		if of[key.Gateway.Namespace] >= portsEach {
			left[key] = fmt.Sprintf("the Gateways of namespace %s have %d ports, which is all that one may have", key.Gateway.Namespace, portsEach)
			continue
		}
		if n, ok := free(key, taken); ok {
			give(key, n)
		} else {
			left[key] = fmt.Sprintf("the Gateways of the cluster have %d ports, which is all that there are", lastPort-firstPort+1)
		}
	}
	return given, left
}

// free is the first port that is not taken, from where the name of one leads.
func free(key gatewayapi.GatewayPort, taken map[int32]bool) (int32, bool) {
	h := fnv.New32a()
	fmt.Fprint(h, key.Gateway, key.Port)
	const size = lastPort - firstPort + 1
	for i := range uint32(size) {
		if n := firstPort + int32((h.Sum32()+i)%size); !taken[n] {
			return n, true
		}
	}
	return 0, false
}

// allocated are the ports that EndpointSlices give Gateways.
func (t *statusTerm) allocated(want map[types.NamespacedName][]gatewayapi.Port) map[gatewayapi.GatewayPort]int32 {
	have := map[gatewayapi.GatewayPort]int32{}
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
					have[gatewayapi.GatewayPort{Gateway: g, Port: port}] = *p.Port
				}
			}
		}
	}
	return have
}

// reservePorts gives the ports of the Gateways their numbers; the result are those that find none,
// and why.
func (t *statusTerm) reservePorts(want map[types.NamespacedName][]gatewayapi.Port) (left map[gatewayapi.GatewayPort]string) {
	since := map[types.NamespacedName]time.Time{}
	for _, g := range t.world.api.all() {
		since[key(g)] = g.CreationTimestamp.Time
	}
	t.ports, left = allocate(want, t.allocated(want), func(of types.NamespacedName) time.Time { return since[of] })
	return left
}

// keepServices makes the Services of Gateways, and removes those of Gateways that are not
// served any more.
func (t *statusTerm) keepServices(ctx context.Context, want map[types.NamespacedName][]gatewayapi.Port) error {
	at := addresses(listOf[*corev1.Node](t.nodes))
	byName := map[types.NamespacedName]*gw.Gateway{}
	for _, g := range t.world.api.all() {
		byName[key(g)] = g
	}
	var errs []error
	keep := map[types.NamespacedName]bool{}
	for name, list := range want {
		g := byName[name]
		if g == nil {
			continue
		}
		svc := gatewayService(g, list, t.thumbprint())
		keep[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = true
		if err := t.keepService(ctx, svc); err != nil {
			errs = append(errs, err)
			continue
		}
		internal := map[string]int32{}
		for _, p := range list {
			if n, ok := t.ports[gatewayapi.GatewayPort{Gateway: name, Port: p}]; ok {
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
	changed.Spec.Ports = keepNodePorts(want.Spec.Ports, have.Spec.Ports)
	if _, err := client.Update(ctx, changed, metav1.UpdateOptions{}); controller.IgnoreNotFound(err) != nil {
		return fmt.Errorf("bring the Service %s/%s up to date: %w", want.Namespace, want.Name, err)
	}
	return nil
}

func sameService(have, want *corev1.Service) bool {
	return maps.Equal(have.Labels, want.Labels) && maps.Equal(have.Annotations, want.Annotations) && equality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences) &&
		samePorts(have, want)
}

func samePorts(have, want *corev1.Service) bool {
	return slices.EqualFunc(have.Spec.Ports, want.Spec.Ports, func(a, b corev1.ServicePort) bool {
		return a.Name == b.Name && a.Port == b.Port && a.Protocol == cmp.Or(b.Protocol, corev1.ProtocolTCP)
	})
}

// keepNodePorts gives ports the numbers on nodes that those of the same names have.
func keepNodePorts(ports, have []corev1.ServicePort) []corev1.ServicePort {
	for i := range ports {
		for _, p := range have {
			if p.Name == ports[i].Name {
				ports[i].NodePort = p.NodePort
			}
		}
	}
	return ports
}

// gatewayService is the Service of a Gateway, with what its infrastructure asks for, and with
// the thumbprint of the account by which certificates are got if it asks for any. Pure.
func gatewayService(g *gw.Gateway, ports []gatewayapi.Port, thumbprint string) *corev1.Service {
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
	delete(svc.Annotations, accountAnnotation)
	if thumbprint != "" && g.Annotations[references.ACMEAnnotation] == "true" {
		svc.Annotations[accountAnnotation] = thumbprint
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
