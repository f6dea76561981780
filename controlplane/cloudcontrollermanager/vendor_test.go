package cloudcontrollermanager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	cloudprovider "k8s.io/cloud-provider"
)

// A vendor is a provider as others write them, against k8s.io/cloud-provider alone.
type vendor struct {
	mu sync.Mutex
	// machines are its instances, by the name of their node.
	machines map[string]machine
	// hang, by the name of a node or Service, blocks calls until their context ends.
	hang map[string]bool
	// fail, by the name of a node or Service, is what calls answer.
	fail map[string]error
	// making, if set, is called while a load balancer is made.
	making func(*corev1.Service)
	// balancers are its load balancers, by UID of their Service, and the nodes behind.
	balancers map[string]string
	routes    []*cloudprovider.Route
	// calls are all that were made.
	calls []string

	noInstances, noBalancers bool
	informers                informers.SharedInformerFactory
	initialized              int
	ended                    <-chan struct{}
}

type machine struct {
	cloudprovider.InstanceMetadata
	gone, off bool
}

func newVendor() *vendor {
	return &vendor{machines: map[string]machine{}, hang: map[string]bool{}, fail: map[string]error{}, balancers: map[string]string{}}
}

func (v *vendor) Initialize(b cloudprovider.ControllerClientBuilder, stop <-chan struct{}) {
	b.ClientOrDie("vendor")
	v.set(func() { v.initialized++; v.ended = stop })
}

func (v *vendor) SetInformers(f informers.SharedInformerFactory)   { v.set(func() { v.informers = f }) }
func (v *vendor) ProviderName() string                             { return "vendor" }
func (v *vendor) HasClusterID() bool                               { return true }
func (v *vendor) InstancesV2() (cloudprovider.InstancesV2, bool)   { return v, !v.noInstances }
func (v *vendor) Instances() (cloudprovider.Instances, bool)       { return nil, false }
func (v *vendor) Zones() (cloudprovider.Zones, bool)               { return nil, false }
func (v *vendor) Clusters() (cloudprovider.Clusters, bool)         { return nil, false }
func (v *vendor) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return v, !v.noBalancers }
func (v *vendor) Routes() (cloudprovider.Routes, bool)             { return v, true }
func (v *vendor) set(change func())                                { v.mu.Lock(); defer v.mu.Unlock(); change() }

// called notes a call, and hangs or fails as it should.
func (v *vendor) called(ctx context.Context, call, name string) error {
	time.Sleep(time.Millisecond) // events are named by their time
	v.mu.Lock()
	v.calls = append(v.calls, call+" "+name)
	hang, err := v.hang[name], v.fail[name]
	v.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

// terms is how often it was initialized, and what ends the last time.
func (v *vendor) terms() (int, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.initialized, v.ended
}

// count is how many of the calls begin so.
func (v *vendor) count(prefix string) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range v.calls {
		if strings.HasPrefix(c, prefix) {
			n++
		}
	}
	return n
}

func (v *vendor) machine(name string) (machine, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m, ok := v.machines[name]
	return m, ok
}

func (v *vendor) InstanceExists(ctx context.Context, node *corev1.Node) (bool, error) {
	if err := v.called(ctx, "exists", node.Name); err != nil {
		return false, err
	}
	m, ok := v.machine(node.Name)
	return ok && !m.gone, nil
}

func (v *vendor) InstanceShutdown(ctx context.Context, node *corev1.Node) (bool, error) {
	m, _ := v.machine(node.Name)
	return m.off, v.called(ctx, "shutdown", node.Name)
}

func (v *vendor) InstanceMetadata(ctx context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	if err := v.called(ctx, "metadata", node.Name); err != nil {
		return nil, err
	}
	m, ok := v.machine(node.Name)
	if !ok {
		return nil, cloudprovider.InstanceNotFound
	}
	node.Labels["touched"] = "by the vendor" // which must reach nobody
	return &m.InstanceMetadata, nil
}

func (v *vendor) GetLoadBalancer(ctx context.Context, _ string, s *corev1.Service) (*corev1.LoadBalancerStatus, bool, error) {
	err := v.called(ctx, "get", s.Name)
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.balancers[string(s.UID)]
	return nil, ok, err
}

func (v *vendor) GetLoadBalancerName(context.Context, string, *corev1.Service) string { return "" }

func (v *vendor) EnsureLoadBalancer(ctx context.Context, cluster string, s *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
	if v.making != nil {
		v.making(s)
	}
	v.set(func() { v.balancers[string(s.UID)] = namesOf(nodes) })
	if err := v.called(ctx, "ensure", s.Name); err != nil {
		return nil, err
	}
	return &corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}}, nil
}

func (v *vendor) UpdateLoadBalancer(ctx context.Context, cluster string, s *corev1.Service, nodes []*corev1.Node) error {
	if err := v.called(ctx, "update", s.Name); err != nil {
		return err
	}
	v.set(func() { v.balancers[string(s.UID)] = namesOf(nodes) })
	return nil
}

func (v *vendor) EnsureLoadBalancerDeleted(ctx context.Context, cluster string, s *corev1.Service) error {
	if err := v.called(ctx, "delete", s.Name); err != nil {
		return err
	}
	v.set(func() { delete(v.balancers, string(s.UID)) })
	return nil
}

func (v *vendor) ListRoutes(ctx context.Context, _ string) ([]*cloudprovider.Route, error) {
	err := v.called(ctx, "list", "routes")
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.routes), err
}

func (v *vendor) CreateRoute(ctx context.Context, _, _ string, r *cloudprovider.Route) error {
	if err := v.called(ctx, "create", string(r.TargetNode)); err != nil {
		return err
	}
	v.set(func() { v.routes = append(v.routes, r) })
	return nil
}

func (v *vendor) DeleteRoute(ctx context.Context, _ string, r *cloudprovider.Route) error {
	if err := v.called(ctx, "remove", string(r.TargetNode)); err != nil {
		return err
	}
	v.set(func() { v.routes = slices.DeleteFunc(v.routes, func(o *cloudprovider.Route) bool { return o == r }) })
	return nil
}

func namesOf(nodes []*corev1.Node) string {
	names := []string{}
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return fmt.Sprint(names)
}
