// Package gateway is the cluster's door for HTTP and TLS: it serves Ingresses on every
// node. A node's part reads Ingresses, IngressClasses, Services and EndpointSlices, and of
// Secrets and ConfigMaps those that Ingresses name; it hands them compiled to the data
// plane and writes events where a port is taken. The server's part, one in a cluster,
// writes the status of Ingresses, events of what is not served, the Service that leads
// to the nodes, and the class and roles.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"knarr/addons/gateway/ingress"
	"knarr/addons/gateway/route"
	"knarr/internal/references"
	"knarr/internal/run"
)

const (
	// Name is the component's.
	Name = "gateway"
	// Namespace and ServiceAccount are whom the server's part is towards the API server.
	Namespace, ServiceAccount = references.GatewayNamespace, references.GatewayAccount
	// Group are the nodes' parts. The authorizer knows it, and User's form.
	Group = references.GatewayGroup
)

// User is whom a node's part is.
func User(node string) string { return references.GatewayUserPrefix + node }

// A Plane serves what it is told: a data plane.
type Plane interface {
	// Run serves until ctx ends.
	Run(ctx context.Context) error
	// Apply replaces what is served; the result has an error for each listener that is not,
	// and for each route that is left out, by their names.
	Apply(c *route.Config) map[string]error
	// SetEndpoints says where a backend is.
	SetEndpoints(backend string, at []route.Endpoint)
}

// Config is what a Gateway needs.
type Config struct {
	// Kube reaches the API server as User(NodeName).
	Kube     *rest.Config
	NodeName string
	// Domain of the cluster. Default cluster.local.
	Domain string
	// Inside are the ranges of pods and Services: no URL of a tenant names an address there.
	Inside []netip.Prefix
	// Settled is called with what is listened at once that is known: first of Ingresses, then
	// of Gateways. What an earlier process has left of these ports is of no use.
	Settled func(of PortsOf)
	// Plane serves.
	Plane Plane
}

// PortsOf says whose ports are meant.
type PortsOf int

// Ingresses have the ports 80 and 443, Gateways those of their range.
const (
	Ingresses PortsOf = iota
	Gateways
	settledOf // how many there are
)

// Has says whether a port may be one of these.
func (of PortsOf) Has(port uint16) bool {
	if of == Ingresses {
		return port == ingress.HTTPPort || port == ingress.HTTPSPort
	}
	return port >= firstPort && port <= lastPort
}

// A Gateway is a node's part.
type Gateway struct {
	cfg    Config
	client kubernetes.Interface
	api    *apiClient
}

// New puts it together; it starts nothing.
func New(cfg Config) (*Gateway, error) {
	client, err := kubernetes.NewForConfig(cfg.Kube)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	api, err := newAPIClient(cfg.Kube)
	if err != nil {
		return nil, err
	}
	if cfg.Domain == "" {
		cfg.Domain = "cluster.local"
	}
	return &Gateway{cfg, client, api}, nil
}

// Run serves until ctx ends.
func (g *Gateway) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group run.Group
	defer group.Wait()
	defer cancel(nil)
	group.Go("gateway: data plane", func() {
		if err := run.Catch("gateway: data plane", func() error { return g.cfg.Plane.Run(ctx) }); err != nil {
			cancel(fmt.Errorf("gateway: data plane: %w", err))
		}
	})
	events, stop := recorder(ctx, g.client, g.cfg.NodeName)
	defer stop()
	n := &nodePart{Gateway: g, world: newWorld(g.client, g.api, g.cfg.Domain, g.cfg.NodeName, g.cfg.Inside), events: events, backends: map[types.NamespacedName][]string{}, sent: map[string][]route.Endpoint{}, reported: map[string]string{}}
	err := n.run(ctx, n.reconcile)
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return err
}

// A nodePart is a Gateway that runs.
type nodePart struct {
	*Gateway
	*world
	events   record.EventRecorder
	backends map[types.NamespacedName][]string // of each Service
	targets  map[string]ingress.Target
	at       host // where this node was when they were located
	sent     map[string][]route.Endpoint
	reported map[string]string // the errors of listeners that events tell of
	settled  PortsOf           // those before it are
}

// everything is the key of what is compiled as a whole, services that of the question whether
// a Service that has changed makes that necessary; any other one is a Service whose endpoints
// have changed.
const everything, services = "*", "services"

func (n *nodePart) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if key != everything {
		namespace, name, _ := strings.Cut(key, "/")
		of := types.NamespacedName{Namespace: namespace, Name: name}
		for _, backend := range n.backends[of] {
			n.locate(backend)
		}
		if n.ofGateways[of] || of == nodesService { // where a Gateway is served has changed, or a node
			n.add(everything)
		}
		return 0, nil
	}
	if wait := n.pace.wait(time.Now()); wait > 0 {
		return wait, nil
	}
	select {
	case <-time.After(gather):
	case <-ctx.Done():
		return 0, nil
	}
	var out *compiled
	var failed map[string]error
	var err error
	spent := processorTime(func() {
		if out, err = n.compile(ctx); err != nil || out == nil {
			return
		}
		n.direct(out.targets, out.moved) // before the routes that lead there
		failed = n.cfg.Plane.Apply(&out.Config)
	})
	if err != nil || out == nil {
		return 0, err
	}
	n.pace.took(spent, time.Now())
	n.settle(out.knowsGateways)
	return n.report(failed, out.Listeners), nil
}

// settle tells that what is listened at is known.
func (n *nodePart) settle(knowsGateways bool) {
	for n.settled < settledOf && (n.settled == Ingresses || knowsGateways) {
		if n.cfg.Settled != nil {
			n.cfg.Settled(n.settled)
		}
		n.settled++
	}
}

// direct finds where backends are that there were not before, or whose Services have
// changed. Changes of endpoints come one by one.
func (n *nodePart) direct(targets map[string]ingress.Target, moved map[references.Object]bool) {
	before, everywhere := n.targets, n.at != n.here
	n.targets, n.at = targets, n.here
	if !route.Same(before, targets) {
		for name, was := range before {
			if now, there := targets[name]; !there || was != now {
				n.backends[was.Service] = slices.DeleteFunc(n.backends[was.Service], func(of string) bool { return of == name })
				if len(n.backends[was.Service]) == 0 {
					delete(n.backends, was.Service)
				}
				if !there {
					delete(n.sent, name)
				}
			}
		}
		for name, t := range targets {
			if was, there := before[name]; !there || was != t {
				n.backends[t.Service] = append(n.backends[t.Service], name)
				n.locate(name)
			}
		}
	}
	if everywhere {
		for name := range targets {
			n.locate(name)
		}
		return
	}
	for o := range moved {
		for _, name := range n.backends[types.NamespacedName{Namespace: o.Namespace, Name: o.Name}] { // those of a Secret's name lead where they did
			n.locate(name)
		}
	}
}

// locate tells the data plane where a backend is, if that has changed.
func (n *nodePart) locate(name string) {
	at := n.endpoints(n.targets[name])
	if before, known := n.sent[name]; known && slices.Equal(before, at) {
		return
	}
	n.sent[name] = at
	n.cfg.Plane.SetEndpoints(name, at)
}

// retryListen is when a port that was taken is tried again.
const retryListen = 10 * time.Second

// maxReported bounds the Ingresses on which events tell of one port.
const maxReported = 50

// report tells of listeners and routes that are not served, on the node's log and on the
// Ingresses: of a listener on all, of a route on its own.
func (n *nodePart) report(failed map[string]error, listeners []route.Listener) (again time.Duration) {
	reported := map[string]string{}
	var concerned func(name string, listener bool) []*networkingv1.Ingress // found once for all
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		err := failed[name]
		if err == nil {
			continue
		}
		isListener := slices.ContainsFunc(listeners, func(l route.Listener) bool { return l.Name == name })
		if isListener {
			again = retryListen
		}
		if reported[name] = err.Error(); n.reported[name] == reported[name] {
			continue
		}
		kind, reason := "route", "RouteFailed"
		if isListener {
			kind, reason = "listener", "ListenFailed"
		}
		slog.Error("gateway: a "+kind+" is not served", kind, name, "err", err)
		if concerned == nil {
			concerned = n.concerned()
		}
		for _, ing := range concerned(name, isListener) {
			n.events.Eventf(ing, corev1.EventTypeWarning, reason, "Node %s does not serve %s: %v", n.cfg.NodeName, name, err)
		}
	}
	n.reported = reported
	return again
}

// concerned finds the Ingresses that a listener, or a route, that is not served is to be
// told of on.
func (n *nodePart) concerned() func(name string, listener bool) []*networkingv1.Ingress {
	all, byRoute := n.ours(), map[string][]*networkingv1.Ingress{}
	for _, ing := range all {
		byRoute[ingress.RouteName(ing)] = []*networkingv1.Ingress{ing}
	}
	return func(name string, listener bool) []*networkingv1.Ingress {
		if listener {
			return all[:min(len(all), maxReported)]
		}
		return byRoute[name]
	}
}
