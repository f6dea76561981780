// Package cloudcontrollermanager runs the controllers that know the machines, load
// balancers and routes of a cloud provider, which it reaches by the interface
// k8s.io/cloud-provider. What each reads and writes its own package says; this one
// reads and writes the Lease kube-system/cloud-controller-manager.
package cloudcontrollermanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/component-base/metrics/legacyregistry"

	"knarr/controlplane/cloudcontrollermanager/metrics"
	"knarr/internal/informer"
	"knarr/internal/leader"
	"knarr/internal/run"
	"knarr/internal/runningcontrollers"
)

// Config is what the manager needs to know.
type Config struct {
	// Kube reaches the API server as the manager.
	Kube *rest.Config
	// ClientFor reaches it as kube-system's service account of that name. Default: Kube.
	ClientFor func(serviceAccount string) *rest.Config
	// QPS and Burst are how many requests a second each controller sends, and how many at
	// once. Default: as many as the API server answers.
	QPS   float32
	Burst int
	// Cloud makes the provider, anew for each time this manager leads.
	Cloud func() (cloudprovider.Interface, error)
	// LeaderElect makes managers of one cluster take turns.
	LeaderElect bool
	// Election are its settings. Default: upstream's.
	Election leader.Times
	// Identity names this manager in the Lease. Default: host name and a random id.
	Identity string
	// Controllers selects by upstream's names: "*" is all, "x" turns x on, "-x" off.
	// Default "*".
	Controllers []string
	// ClusterName is how the provider knows the cluster. Default "kubernetes".
	ClusterName string
	// ClusterCIDRs are the ranges of pod addresses, outside of which routes are left
	// alone.
	ClusterCIDRs []netip.Prefix
	// NoRoutes leaves the provider's routes alone.
	NoRoutes bool
	// WatchBasedRoutes compares routes after changes of nodes, and hardly without.
	WatchBasedRoutes bool
	// RouteReconciliationPeriod is the time between two comparisons of routes with nodes.
	// Default 10s.
	RouteReconciliationPeriod time.Duration
	// NodeMonitorPeriod is how often the provider is asked about a node that is not
	// ready. Default 5s.
	NodeMonitorPeriod time.Duration
	// NodeStatusUpdateFrequency is how often it is asked for a node's addresses.
	// Default 5m.
	NodeStatusUpdateFrequency time.Duration
	// ConcurrentNodeSyncs, ConcurrentNodeStatusUpdates and ConcurrentServiceSyncs are how
	// many nodes are initialised, nodes asked about and Services synchronized at once.
	// Default 1, ConcurrentNodeSyncs and 1.
	ConcurrentNodeSyncs, ConcurrentNodeStatusUpdates, ConcurrentServiceSyncs int
}

func (c *Config) setDefaults() {
	if c.ClientFor == nil {
		c.ClientFor = func(string) *rest.Config { return c.Kube }
	}
	c.ClusterName = cmp.Or(c.ClusterName, "kubernetes")
	c.RouteReconciliationPeriod = cmp.Or(c.RouteReconciliationPeriod, 10*time.Second)
	c.NodeMonitorPeriod = cmp.Or(c.NodeMonitorPeriod, 5*time.Second)
	c.NodeStatusUpdateFrequency = cmp.Or(c.NodeStatusUpdateFrequency, 5*time.Minute)
	c.ConcurrentNodeSyncs = cmp.Or(c.ConcurrentNodeSyncs, 1)
	c.ConcurrentNodeStatusUpdates = cmp.Or(c.ConcurrentNodeStatusUpdates, c.ConcurrentNodeSyncs)
	c.ConcurrentServiceSyncs = cmp.Or(c.ConcurrentServiceSyncs, 1)
}

// A Manager runs controllers.
type Manager struct {
	cfg     Config
	on      []entry
	metrics *metrics.Metrics
}

// name is upstream's, of the Lease too.
const name = "cloud-controller-manager"

// New checks cfg and returns a manager that runs the controllers it selects.
func New(cfg Config) (*Manager, error) {
	if cfg.Kube == nil || cfg.Cloud == nil {
		return nil, errors.New("cloud controller manager: no API server or no cloud provider given")
	}
	cfg.setDefaults()
	on, err := choose(cfg.Controllers)
	if err != nil {
		return nil, err
	}
	return &Manager{cfg, on, counted()}, nil
}

// counted are the metrics of the process, registered once: managers that take turns
// in it count together.
var counted = sync.OnceValue(func() *metrics.Metrics {
	m := metrics.New()
	legacyregistry.RawMustRegister(m.Collectors()...)
	runningcontrollers.Register()
	return m
})

// Run runs the controllers until ctx ends; with leader election only while this
// manager leads.
func (m *Manager) Run(ctx context.Context) error {
	if !m.cfg.LeaderElect {
		return m.term(ctx)
	}
	return leader.Run(ctx, leader.Config{Kube: unlimited(m.cfg.Kube), Lease: name, Identity: m.cfg.Identity, Times: m.cfg.Election}, m.term)
}

// A term is what the controllers share for as long as this manager leads.
type term struct {
	Config
	cloud     cloudprovider.Interface
	metrics   *metrics.Metrics
	informers informers.SharedInformerFactory
	broadcast record.EventBroadcaster
	// changed passes on that instances may have changed; nil: the provider does not know.
	changed *notices
	// account is that of the controller being built, err what went wrong.
	account string
	err     error
}

// client reaches the API server as the controller being built.
func (t *term) client() kubernetes.Interface {
	c, err := kubernetes.NewForConfig(t.reach())
	t.err = errors.Join(t.err, err)
	return c
}

// reach is how the controller being built reaches the API server.
func (t *term) reach() *rest.Config {
	cfg := unlimited(t.ClientFor(t.account))
	if t.QPS > 0 {
		cfg.QPS, cfg.Burst = t.QPS, t.Burst
	}
	return cfg
}

// unlimited lets a client ask as fast as the server answers: the server has its own
// ways to be fair. What a term that is over still sends is not sent.
func unlimited(cfg *rest.Config) *rest.Config {
	cfg = leader.Fenced(cfg)
	cfg.QPS, cfg.RateLimiter = -1, nil
	return cfg
}

// events records under the name upstream's controller has in events.
func (t *term) events(component string) record.EventRecorder {
	return t.broadcast.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
}

// A follower is a provider that knows when instances may have changed.
type follower interface {
	Follow(ctx context.Context, changed func()) error
}

func (m *Manager) term(ctx context.Context) error {
	base, err := kubernetes.NewForConfig(unlimited(m.cfg.Kube))
	if err != nil {
		return fmt.Errorf("cloud controller manager's client: %w", err)
	}
	cloud, err := m.cfg.Cloud()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &term{
		Config: m.cfg, cloud: cloud, metrics: m.metrics,
		informers: informers.NewSharedInformerFactoryWithOptions(base, 0, informers.WithTransform(informer.WithoutManagedFields)),
		broadcast: record.NewBroadcaster(record.WithContext(ctx)),
	}
	defer t.broadcast.Shutdown()
	t.broadcast.StartRecordingToSink(&coreclient.EventSinkImpl{Interface: base.CoreV1().Events("")})

	cloud.Initialize(clients{m.cfg.ClientFor}, ctx.Done())
	if user, ok := cloud.(cloudprovider.InformerUser); ok {
		user.SetInformers(t.informers)
	}
	var parts []run.Component
	if f, ok := cloud.(follower); ok {
		t.changed = &notices{}
		parts = append(parts, run.Func("cloud provider", func(ctx context.Context) error { return f.Follow(ctx, t.changed.send) }))
	}
	for _, e := range m.on {
		t.account = e.account
		r, err := e.build(t)
		if err = errors.Join(err, t.err); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		if r != nil {
			parts = append(parts, run.Func(e.name, runningcontrollers.During(name, e.alias, r)))
		}
	}
	t.informers.StartWithContext(ctx)
	defer t.informers.Shutdown()
	defer cancel()
	slog.InfoContext(ctx, "cloud controllers started", "provider", cloud.ProviderName())
	if len(parts) == 0 { // a term that ended would be followed by the next one at once
		<-ctx.Done()
		return nil
	}
	return run.All(ctx, parts...)
}
