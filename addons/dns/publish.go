package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/internal/controller"
)

const (
	serviceNamespace = "kube-system"
	serviceName      = "kube-dns"
	metricsName      = "metrics"
)

// MetricsPort is where CoreDNS' metrics are scraped.
const MetricsPort = 9153

// A Publisher puts the server of every node behind the Service kube-dns, whose
// traffic stays on its node: so DNS needs no other node, and no node needs the
// right to say where the others' queries go.
type Publisher struct {
	client    kubernetes.Interface
	addresses []netip.Addr
	port      int32
	at        Location
}

// A Location says where a node's server is, at one address of each family. What of it
// cannot be read is an error beside the others.
type Location func(*corev1.Node) ([]netip.Addr, error)

// NewPublisher puts a Publisher together, for a Service with these addresses, one of
// each family, and servers on this port of their nodes; it starts nothing.
func NewPublisher(kube *rest.Config, addresses []netip.Addr, port int32, at Location) (*Publisher, error) {
	client, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return nil, fmt.Errorf("dns: %w", err)
	}
	return &Publisher{client, addresses, port, at}, nil
}

// Run publishes until ctx ends.
func (a *Publisher) Run(ctx context.Context) error {
	if err := a.ensureService(ctx); err != nil {
		return err
	}
	f := informers.NewSharedInformerFactoryWithOptions(a.client, 0, informers.WithTransform(slimNode))
	nodes := f.Core().V1().Nodes().Informer()
	c := &controller.Controller[string]{
		Name: "dns-announcer",
		Sources: []controller.Source[string]{{Informer: nodes, Keys: func(o metav1.Object) []string {
			return []string{o.GetName()}
		}}},
		Reconcile: func(ctx context.Context, name string) (time.Duration, error) {
			o, found, err := nodes.GetStore().GetByKey(name)
			if err != nil || !found {
				return 0, err // the slice goes with its owner
			}
			return 0, a.publish(ctx, o.(*corev1.Node))
		},
	}
	ctx, cancel := context.WithCancel(ctx)
	f.StartWithContext(ctx)
	defer f.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	return c.Run(ctx)
}

// slimNode keeps what an EndpointSlice needs.
func slimNode(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion},
			Spec:       corev1.NodeSpec{PodCIDRs: n.Spec.PodCIDRs}, Status: corev1.NodeStatus{Addresses: n.Status.Addresses},
		}, nil
	}
	return o, nil
}

// ensureService makes the Service that pods' resolvers point at.
func (a *Publisher) ensureService(ctx context.Context) error {
	local := corev1.ServiceInternalTrafficPolicyLocal
	port := func(name string, p corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: 53, Protocol: p, TargetPort: intstr.FromInt32(a.port)}
	}
	metrics := corev1.ServicePort{Name: metricsName, Port: MetricsPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(MetricsPort)}
	ips, families, policy := a.families()
	services := a.client.CoreV1().Services(serviceNamespace)
	have, err := services.Get(ctx, serviceName, metav1.GetOptions{})
	switch {
	case err == nil && have.Spec.Selector != nil:
		slog.WarnContext(ctx, "Service kube-system/kube-dns has a selector and is left as it is; give --disable=coredns if another DNS serves")
	case err == nil && (have.Spec.InternalTrafficPolicy == nil || *have.Spec.InternalTrafficPolicy != local || !scraped(have)):
		have.Spec.InternalTrafficPolicy = &local // made when there was one node
		if !scraped(have) {                      // or no port for metrics
			have.Spec.Ports = append(have.Spec.Ports, metrics)
			metav1.SetMetaDataAnnotation(&have.ObjectMeta, "prometheus.io/port", strconv.Itoa(MetricsPort))
			metav1.SetMetaDataAnnotation(&have.ObjectMeta, "prometheus.io/scrape", "true")
		}
		_, err = services.Update(ctx, have, metav1.UpdateOptions{})
	case apierrors.IsNotFound(err):
		_, err = services.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: serviceName, Labels: map[string]string{
				"k8s-app": serviceName, "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
			}, Annotations: map[string]string{"prometheus.io/port": strconv.Itoa(MetricsPort), "prometheus.io/scrape": "true"}},
			Spec: corev1.ServiceSpec{
				ClusterIP: ips[0], ClusterIPs: ips, IPFamilies: families, IPFamilyPolicy: &policy,
				InternalTrafficPolicy: &local,
				Ports:                 []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP), metrics},
			},
		}, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
		return fmt.Errorf("make the DNS service: %w", err)
	}
	return nil
}

// families are the Service's addresses and what it says of them.
func (a *Publisher) families() (ips []string, families []corev1.IPFamily, policy corev1.IPFamilyPolicy) {
	for _, ip := range a.addresses {
		family := corev1.IPv4Protocol
		if ip.Is6() {
			family = corev1.IPv6Protocol
		}
		ips, families = append(ips, ip.String()), append(families, family)
	}
	policy = corev1.IPFamilyPolicySingleStack
	if len(ips) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	return ips, families, policy
}

// scraped reports whether a Service has the port for metrics.
func scraped(s *corev1.Service) bool {
	return slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Name == metricsName || p.Port == MetricsPort && p.Protocol == corev1.ProtocolTCP
	})
}

func (a *Publisher) publish(ctx context.Context, node *corev1.Node) error {
	at, err := a.at(node)
	for _, want := range endpointSlices(node, at, a.port) {
		err = errors.Join(err, a.publishSlice(ctx, node, want))
	}
	return err
}

func (a *Publisher) publishSlice(ctx context.Context, node *corev1.Node, want *discoveryv1.EndpointSlice) error {
	client := a.client.DiscoveryV1().EndpointSlices(serviceNamespace)
	have, err := client.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && have.AddressType != want.AddressType:
		err = client.Delete(ctx, want.Name, metav1.DeleteOptions{})
		if err == nil {
			_, err = client.Create(ctx, want, metav1.CreateOptions{})
		}
	case err == nil && !(reflect.DeepEqual(have.Endpoints, want.Endpoints) && reflect.DeepEqual(have.Ports, want.Ports) &&
		reflect.DeepEqual(have.OwnerReferences, want.OwnerReferences)):
		want.ResourceVersion = have.ResourceVersion
		_, err = client.Update(ctx, want, metav1.UpdateOptions{})
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return nil // another server publishes the same
	}
	if err != nil {
		return fmt.Errorf("publish the DNS of node %s: %w", node.Name, err)
	}
	return nil
}

// AtPods is where servers are on the bridge of knarr's own pod network: at the first
// address of each of the node's ranges. Pure.
func AtPods(node *corev1.Node) (all []netip.Addr, err error) {
	for _, r := range node.Spec.PodCIDRs {
		pods, perr := netip.ParsePrefix(r)
		if perr != nil {
			err = errors.Join(err, fmt.Errorf("pod range of node %s: %w", node.Name, perr))
			continue
		}
		all = append(all, pods.Masked().Addr().Next())
	}
	return all, err
}

// AtNodes is where servers are under a pod network that knarr knows nothing of: at the
// first address of each family that the node itself has. Pure.
func AtNodes(node *corev1.Node) (all []netip.Addr, err error) {
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		ip, perr := netip.ParseAddr(a.Address)
		if perr != nil {
			err = errors.Join(err, fmt.Errorf("address of node %s: %w", node.Name, perr))
			continue
		}
		if !slices.ContainsFunc(all, func(b netip.Addr) bool { return b.Is6() == ip.Is6() }) {
			all = append(all, ip)
		}
	}
	return all, err
}

// endpointSlices are the EndpointSlices of a node's server, one of each family. Pure.
func endpointSlices(node *corev1.Node, addresses []netip.Addr, number int32) (all []*discoveryv1.EndpointSlice) {
	port := func(name string, p corev1.Protocol, number int32) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Protocol: &p, Port: &number}
	}
	for i, at := range addresses {
		addressType := discoveryv1.AddressTypeIPv4
		if at.Is6() {
			addressType = discoveryv1.AddressTypeIPv6
		}
		name := serviceName + "-" + node.Name
		if i > 0 { // the first has the name that it has in a cluster of one family; behind a dot this is no other node's
			name = serviceName + "." + strings.ToLower(string(addressType)) + "." + node.Name
		}
		all = append(all, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: serviceNamespace, Name: name,
				Labels: map[string]string{
					discoveryv1.LabelServiceName: serviceName, discoveryv1.LabelManagedBy: "dns.knarr.io", "k8s-app": serviceName,
				},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
			},
			AddressType: addressType,
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{at.String()}, NodeName: &node.Name,
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			}},
			Ports: []discoveryv1.EndpointPort{
				port("dns", corev1.ProtocolUDP, number), port("dns-tcp", corev1.ProtocolTCP, number), port(metricsName, corev1.ProtocolTCP, MetricsPort),
			},
		})
	}
	return all
}
