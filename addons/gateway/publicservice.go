package gateway

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/addons/gateway/ingress"
	"knarr/internal/controller"
)

// serviceName is the Service that leads to every node's ports for Ingresses. Whoever gives
// Services of type LoadBalancer addresses gives Ingresses theirs.
const serviceName = "knarr-ingress"

// A publicService keeps that Service and its EndpointSlices.
type publicService struct {
	client          kubernetes.Interface
	nodes, services cache.Store
}

// slimNode keeps of a Node where it is, and whether it is ready.
func slimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	small := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, DeletionTimestamp: n.DeletionTimestamp, Labels: map[string]string{}},
		Status:     corev1.NodeStatus{Addresses: n.Status.Addresses},
	}
	for _, label := range []string{corev1.LabelNodeExcludeBalancers, corev1.LabelTopologyZone} {
		if v, ok := n.Labels[label]; ok {
			small.Labels[label] = v
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			small.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return small, nil
}

// An address is one of a node that is ready.
type address struct {
	node, zone string
	at         netip.Addr
}

// addresses are the internal ones of the nodes that are ready and may be led to, in the
// order of their names. Pure.
func addresses(nodes []*corev1.Node) (all []address) {
	for _, n := range nodes {
		if _, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]; excluded || n.DeletionTimestamp != nil ||
			!slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}) {
			continue
		}
		families := map[bool]bool{} // one address of each
		for _, a := range n.Status.Addresses {
			at, err := netip.ParseAddr(a.Address)
			if a.Type != corev1.NodeInternalIP || err != nil || families[at.Is6()] || at.IsLoopback() || at.IsUnspecified() || at.IsLinkLocalUnicast() || at.IsMulticast() {
				continue
			}
			families[at.Is6()] = true
			all = append(all, address{n.Name, n.Labels[corev1.LabelTopologyZone], at})
		}
	}
	slices.SortFunc(all, func(a, b address) int { return cmp.Or(cmp.Compare(a.node, b.node), a.at.Compare(b.at)) })
	return all
}

// open keeps the Service while it is needed, and returns the addresses of Ingresses: those
// of the Service, or else the nodes' own if nothing gives Services addresses.
func (d *publicService) open(ctx context.Context, needed bool, want *corev1.Service, nodesOwn bool) ([]networkingv1.IngressLoadBalancerIngress, error) {
	o, _, _ := d.services.GetByKey(Namespace + "/" + serviceName)
	have, _ := o.(*corev1.Service)
	if !needed {
		if have == nil {
			return nil, nil
		}
		err := d.client.CoreV1().Services(Namespace).Delete(ctx, serviceName, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(have.UID))})
		if controller.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("remove the Service %s: %w", serviceName, err)
		}
		return nil, nil
	}
	if have == nil {
		var err error
		if have, err = d.client.CoreV1().Services(Namespace).Create(ctx, want, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			slog.WarnContext(ctx, "Service kube-system/knarr-ingress is not the gateway's own and is left as it is")
			return nil, nil
		} else if err != nil {
			return nil, fmt.Errorf("make the Service %s: %w", serviceName, err)
		}
	} else if !samePorts(have, want) || have.Annotations[accountAnnotation] != want.Annotations[accountAnnotation] {
		changed := have.DeepCopy()
		if changed.Annotations == nil {
			changed.Annotations = map[string]string{}
		}
		maps.Copy(changed.Annotations, want.Annotations)
		changed.Spec.Ports = keepNodePorts(want.Spec.Ports, have.Spec.Ports)
		var err error
		if have, err = d.client.CoreV1().Services(Namespace).Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("bring the Service %s up to date: %w", serviceName, err)
		}
	}
	var nodes []*corev1.Node
	for _, o := range d.nodes.List() {
		nodes = append(nodes, o.(*corev1.Node))
	}
	at := addresses(nodes)
	if err := d.lead(ctx, have, at, nil); err != nil {
		return nil, err
	}
	var all []networkingv1.IngressLoadBalancerIngress
	for _, in := range have.Status.LoadBalancer.Ingress {
		all = append(all, networkingv1.IngressLoadBalancerIngress{IP: in.IP, Hostname: in.Hostname})
	}
	if len(all) == 0 && nodesOwn {
		for _, a := range at {
			all = append(all, networkingv1.IngressLoadBalancerIngress{IP: a.at.String()})
		}
	}
	return all, nil
}

// accountAnnotation is the thumbprint of the account by which nodes answer challenges of
// ACME.
const accountAnnotation = "knarr.io/acme-account"

// newPublicService is the Service, with a port for HTTP/3 if something is served so, and
// the account's thumbprint once there is one.
func newPublicService(http3 bool, thumbprint string) *corev1.Service {
	meta := madeHere(serviceName)
	if meta.Namespace = Namespace; thumbprint != "" {
		meta.Annotations = map[string]string{accountAnnotation: thumbprint}
	}
	dual := corev1.IPFamilyPolicyPreferDualStack
	ports := []corev1.ServicePort{{Name: "http", Port: ingress.HTTPPort}, {Name: "https", Port: ingress.HTTPSPort}}
	if http3 {
		ports = append(ports, corev1.ServicePort{Name: "http3", Port: ingress.HTTPSPort, Protocol: corev1.ProtocolUDP})
	}
	return &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, IPFamilyPolicy: &dual, Ports: ports,
	}}
}

// maxInSlice is how many endpoints an EndpointSlice has.
const maxInSlice = 100

// lead writes the EndpointSlices of a Service that leads to the nodes: to its own ports
// there, or to those that internal says, by name.
func (d *publicService) lead(ctx context.Context, svc *corev1.Service, at []address, internal map[string]int32) error {
	client := d.client.DiscoveryV1().EndpointSlices(svc.Namespace)
	want := nodeSlices(svc, at, internal)
	there, err := client.List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + sliceManager + "," + discoveryv1.LabelServiceName + "=" + svc.Name})
	if err != nil {
		return fmt.Errorf("list the endpoints of the Service %s: %w", svc.Name, err)
	}
	have := map[string]*discoveryv1.EndpointSlice{}
	for i := range there.Items {
		have[there.Items[i].Name] = &there.Items[i]
	}
	for _, w := range want {
		h := have[w.Name]
		delete(have, w.Name)
		switch {
		case h == nil:
			_, err = client.Create(ctx, w, metav1.CreateOptions{})
		case h.AddressType == w.AddressType && equality.Semantic.DeepEqual(h.Endpoints, w.Endpoints) && equality.Semantic.DeepEqual(h.Ports, w.Ports):
			continue
		default:
			w.ResourceVersion = h.ResourceVersion
			_, err = client.Update(ctx, w, metav1.UpdateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("write the endpoints of the Service %s: %w", svc.Name, err)
		}
	}
	for name := range have {
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); controller.IgnoreNotFound(err) != nil {
			return fmt.Errorf("remove endpoints of the Service %s: %w", svc.Name, err)
		}
	}
	return nil
}

const sliceManager = "gateway.knarr.io"

// nodeSlices are the EndpointSlices of a Service that leads to nodes. Pure.
func nodeSlices(svc *corev1.Service, at []address, internal map[string]int32) (all []*discoveryv1.EndpointSlice) {
	var ports []discoveryv1.EndpointPort
	for _, p := range svc.Spec.Ports {
		number := p.Port
		if internal != nil {
			var ok bool
			if number, ok = internal[p.Name]; !ok {
				continue // there is no port left for it
			}
		}
		ports = append(ports, discoveryv1.EndpointPort{Name: new(p.Name), Port: new(number), Protocol: new(cmp.Or(p.Protocol, corev1.ProtocolTCP))})
	}
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		var of []discoveryv1.Endpoint
		for _, a := range at {
			if a.at.Is6() != (family == discoveryv1.AddressTypeIPv6) {
				continue
			}
			e := discoveryv1.Endpoint{Addresses: []string{a.at.String()}, NodeName: new(a.node),
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}}
			if a.zone != "" {
				e.Zone = new(a.zone)
			}
			of = append(of, e)
		}
		n := 0
		for part := range slices.Chunk(of, maxInSlice) {
			suffix := map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: "-ipv4-", discoveryv1.AddressTypeIPv6: "-ipv6-"}[family]
			all = append(all, &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: svc.Namespace, Name: svc.Name + suffix + strconv.Itoa(n),
					Labels:          map[string]string{discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: sliceManager},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: svc.Name, UID: svc.UID}},
				},
				AddressType: family, Endpoints: part, Ports: ports,
			})
			n++
		}
	}
	return all
}
