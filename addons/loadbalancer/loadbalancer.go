// Package loadbalancer gives Services of type LoadBalancer addresses, those of pools or
// of the nodes, without a pod and without a host port: kube-proxy leads what arrives
// there to the endpoints, and keeps the client's address. It reads Services, Nodes,
// EndpointSlices and AddressPools, and writes the status of Services and pools, events,
// and the roles of its own identities.
//
// A load balancer holds nothing outside of the API, so no finalizer is needed: with
// the Service it is gone.
package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/addons/loadbalancer/addresspool"
	"knarr/internal/controller"
	"knarr/internal/informer"
	"knarr/internal/leader"
	"knarr/internal/run"
)

const (
	// Name is the component's.
	Name = "service-lb"
	// Class is the loadBalancerClass that means this one even where another serves
	// the Services without a class.
	Class = "knarr.io/service-lb"
	// Namespace and ServiceAccount are whom it is towards the API server.
	Namespace, ServiceAccount = "kube-system", "service-lb"
)

// Config is what a Controller needs.
type Config struct {
	// Kube reaches the API server as ServiceAccount.
	Kube *rest.Config
	// Registrar reaches it as who may write roles.
	Registrar *rest.Config
	// LeaderElect makes those of several servers take turns, Identity is who this is.
	LeaderElect bool
	Identity    string
	// ClassOnly leaves Services without a class to a vendor's controller.
	ClassOnly bool
	// Ports are the TCP ports of servers that no Service may take at a node, and whose
	// they are.
	Ports map[int32]string
}

// A Controller writes what the plan says.
type Controller struct {
	cfg      Config
	client   kubernetes.Interface
	reserved map[port]string
}

// New puts it together; it starts nothing.
func New(cfg Config) (*Controller, error) {
	cfg.Kube = leader.Fenced(cfg.Kube)
	client, err := kubernetes.NewForConfig(cfg.Kube)
	if err != nil {
		return nil, fmt.Errorf("service load balancer: %w", err)
	}
	return &Controller{cfg, client, reservedPorts(cfg.Ports)}, nil
}

// Run keeps the Services' addresses until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	if err := publish(ctx, c.cfg.Registrar); err != nil {
		return err
	}
	if err := addresspool.Define(ctx, c.cfg.Registrar); err != nil {
		return err
	}
	if !c.cfg.LeaderElect {
		return c.term(ctx)
	}
	return leader.Run(ctx, leader.Config{Kube: c.cfg.Kube, Lease: Name, Identity: c.cfg.Identity}, c.term)
}

// A term is what lasts as long as this one leads.
type term struct {
	*Controller
	services, nodes, pools cache.Store
	slices                 cache.Indexer
	poolClient             *addresspool.Client
	events                 record.EventRecorder
	// reported are the refusals of which an event has told already.
	reported map[types.UID]string
	// announced are the addresses that may have a Lease; nil until it was looked.
	announced map[netip.Addr]bool
}

// byService is the index of EndpointSlices.
const byService = "service"

// everything is the only key: Services share addresses, so that one's change may
// concern any other. Changes that come close together are one plan.
const everything = "everything"

func (c *Controller) term(ctx context.Context) error {
	f := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithTransform(slim))
	services, nodes, endpoints := f.Core().V1().Services().Informer(), f.Core().V1().Nodes().Informer(), f.Discovery().V1().EndpointSlices().Informer()
	if err := informer.Index(endpoints, cache.Indexers{byService: func(o any) ([]string, error) {
		e := o.(*discoveryv1.EndpointSlice)
		return []string{e.Namespace + "/" + e.Labels[discoveryv1.LabelServiceName]}, nil
	}}); err != nil {
		return err
	}
	poolClient, err := addresspool.NewClient(c.cfg.Kube)
	if err != nil {
		return err
	}
	poolClient.WaitServed(ctx)
	pools := poolClient.Informer()
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.client.CoreV1().Events("")})
	t := &term{
		Controller: c, services: services.GetStore(), nodes: nodes.GetStore(), slices: endpoints.GetIndexer(), pools: pools.GetStore(), poolClient: poolClient,
		events: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: Name}), reported: map[types.UID]string{},
	}
	loop := &controller.Controller[string]{
		Name: Name,
		Sources: []controller.Source[string]{
			{Informer: services, Keys: func(o metav1.Object) []string {
				s := o.(*corev1.Service)
				return when(s.Spec.Type == corev1.ServiceTypeLoadBalancer || len(s.Status.LoadBalancer.Ingress) > 0)
			}},
			{Informer: nodes, Keys: func(metav1.Object) []string { return when(true) }},
			{Informer: pools, Keys: func(metav1.Object) []string { return when(true) }},
			{Informer: endpoints, Keys: func(o metav1.Object) []string {
				s := t.service(o.GetNamespace() + "/" + o.GetLabels()[discoveryv1.LabelServiceName])
				return when(s != nil && c.serves(s) && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal)
			}},
		},
		Reconcile: func(ctx context.Context, _ string) (time.Duration, error) { return 0, t.reconcile(ctx) },
	}
	ctx, cancel := context.WithCancel(ctx)
	f.StartWithContext(ctx)
	var following run.Group
	following.Go("address pools", func() { pools.RunWithContext(ctx) })
	defer following.Wait()
	defer f.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	return loop.Run(ctx)
}

func when(concerned bool) []string {
	if concerned {
		return []string{everything}
	}
	return nil
}

// slim keeps of EndpointSlices where they are ready, and of all others what a
// controller may need.
func slim(o any) (any, error) {
	e, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return informer.TrimMetadata(o)
	}
	small := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: e.Namespace, Name: e.Name, UID: e.UID, ResourceVersion: e.ResourceVersion,
		Labels: map[string]string{discoveryv1.LabelServiceName: e.Labels[discoveryv1.LabelServiceName]},
	}}
	for _, one := range e.Endpoints {
		if one.NodeName != nil && one.Conditions.Ready != nil && *one.Conditions.Ready &&
			!slices.ContainsFunc(small.Endpoints, func(have discoveryv1.Endpoint) bool { return *have.NodeName == *one.NodeName }) {
			small.Endpoints = append(small.Endpoints, discoveryv1.Endpoint{NodeName: one.NodeName})
		}
	}
	return small, nil
}

func (t *term) service(key string) *corev1.Service {
	o, _, _ := t.services.GetByKey(key) // a store's only error is its index's
	s, _ := o.(*corev1.Service)
	return s
}

// serves says that a Service is one of ours.
func (c *Controller) serves(s *corev1.Service) bool {
	class := s.Spec.LoadBalancerClass
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.DeletionTimestamp == nil &&
		(class == nil && !c.cfg.ClassOnly || class != nil && *class == Class)
}

func (t *term) reconcile(ctx context.Context) error {
	var nodes []node
	anyReady := false
	for _, o := range t.nodes.List() {
		anyReady = anyReady || isReady(o.(*corev1.Node))
		if n, ok := nodeOf(o.(*corev1.Node)); ok {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b node) int { return strings.Compare(a.name, b.name) })
	var mine []service
	objects := map[cache.ObjectName]*corev1.Service{}
	var errs []error
	for _, o := range t.services.List() {
		switch s := o.(*corev1.Service); {
		case t.serves(s):
			of := serviceOf(s)
			if of.local {
				of.endpoints = t.ready(of.name)
			}
			mine, objects[of.name] = append(mine, of), s
		case s.Spec.Type != corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) > 0:
			errs = append(errs, t.write(ctx, s, nil)) // it was one before
		}
	}
	pools, problems := t.allPools()
	verdicts, others := allot(mine, nodes, pools)
	maps.Copy(verdicts, plan(others, nodes, t.reserved))
	for i := range mine {
		v := verdicts[mine[i].name]
		// While no node is ready, as at a cluster's start, that is said of the nodes.
		if len(v.addresses) == 0 && len(v.refused) == 0 && anyReady {
			v.refused = []string{mine[i].none(nodes)}
			verdicts[mine[i].name] = v
		}
	}
	known := map[types.UID]string{}
	for name, v := range verdicts {
		s := objects[name]
		errs = append(errs, t.settle(ctx, s, v))
		if text, ok := t.reported[s.UID]; ok {
			known[s.UID] = text
		}
	}
	t.reported = known // of Services that are gone there is nothing to remember
	errs = append(errs, t.tellPools(ctx, pools, problems, verdicts), t.tidy(ctx, pools, verdicts))
	return errors.Join(errs...)
}

// ready are the nodes with a ready endpoint of a Service.
func (t *term) ready(name cache.ObjectName) map[string]bool {
	found := map[string]bool{}
	all, _ := t.slices.ByIndex(byService, name.String()) // the index is there
	for _, o := range all {
		for _, e := range o.(*discoveryv1.EndpointSlice).Endpoints {
			found[*e.NodeName] = true
		}
	}
	return found
}

// settle writes a Service's addresses, and says why it has none or not all.
func (t *term) settle(ctx context.Context, s *corev1.Service, v verdict) error {
	if len(v.refused) > 0 {
		t.tell(s, strings.Join(v.refused, "; "))
	} else {
		delete(t.reported, s.UID)
	}
	return t.write(ctx, s, v.addresses)
}

// tell records one event for as long as its text stays the same.
func (t *term) tell(s *corev1.Service, why string) {
	const most = 900 // an event's message holds 1,024 bytes
	if why = why[:min(len(why), most)]; t.reported[s.UID] == why {
		return
	}
	t.reported[s.UID] = why
	t.events.Event(s, corev1.EventTypeWarning, "SyncLoadBalancerFailed", "Error syncing load balancer: "+why)
}

// write puts the addresses into the Service's status, unless they are there.
func (t *term) write(ctx context.Context, s *corev1.Service, addresses []netip.Addr) error {
	want := make([]corev1.LoadBalancerIngress, len(addresses))
	for i, a := range addresses {
		want[i] = corev1.LoadBalancerIngress{IP: a.String(), IPMode: new(corev1.LoadBalancerIPModeVIP)}
	}
	if slices.EqualFunc(s.Status.LoadBalancer.Ingress, want, func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP && a.Hostname == "" }) {
		return nil
	}
	changed := s.DeepCopy()
	changed.Status.LoadBalancer.Ingress = want
	if _, err := t.client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{}); controller.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the addresses of Service %s/%s: %w", s.Namespace, s.Name, err)
	} else if err == nil && len(want) > 0 {
		t.events.Event(s, corev1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer")
	}
	return nil
}
