// Package controllermanager runs the cluster's controllers behind one set of
// informers and, where several managers run, one Lease. What each reads and
// writes its own package says; this one reads and writes the Lease
// kube-system/kube-controller-manager.
package controllermanager

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"knarr/controlplane/controllermanager/csr"
	"knarr/controlplane/controllermanager/endpointslice"
	"knarr/controlplane/controllermanager/endpointslicemirroring"
	"knarr/controlplane/controllermanager/horizontalpodautoscaler"
	"knarr/controlplane/controllermanager/nodelifecycle"
	"knarr/controlplane/controllermanager/persistentvolume"
	"knarr/internal/features"
	"knarr/internal/informer"
	"knarr/internal/leader"
	"knarr/internal/run"
	"knarr/internal/runningcontrollers"
)

// Config is what the manager needs to know.
type Config struct {
	// Kube reaches the API server as system:kube-controller-manager.
	Kube *rest.Config
	// ClientFor reaches it as kube-system's service account of that name, one
	// per controller. Default: Kube.
	ClientFor func(serviceAccount string) *rest.Config
	// RootCA is the certificate authority that kube-root-ca.crt publishes, in
	// PEM. Empty: it is not published.
	RootCA []byte
	// Signers sign what was approved for the API's own signers. Empty: nobody does.
	Signers csr.Signers
	// SigningDuration is how long what they sign is valid. Default a year.
	SigningDuration time.Duration
	// TokenKey signs the tokens in Secrets. Nil: none are made.
	TokenKey crypto.Signer
	// LeaderElect makes managers of one cluster take turns.
	LeaderElect bool
	// Election are its settings. Default: upstream's.
	Election leader.Times
	// Identity names this manager in the Lease. Default: host name and a random id.
	Identity string
	// Controllers selects by upstream's names: "*" is all that are on by
	// default, "x" turns x on, "-x" off. Default "*".
	Controllers []string
	// Workers, when set, is the number of keys each controller works on at
	// once, in place of its own.
	Workers int
	// ConcurrentSyncs are such numbers by controller; 0 is its own.
	ConcurrentSyncs map[string]int
	// ClusterCIDRs are the ranges that nodes' pod ranges come from, one per
	// address family. Empty: nodes get none.
	ClusterCIDRs []netip.Prefix
	// ServiceCIDRs are kept out of the nodes' ranges.
	ServiceCIDRs []netip.Prefix
	// NodeCIDRMaskSizeIPv4 and NodeCIDRMaskSizeIPv6 are the sizes of a node's
	// range. Default 24 and 64.
	NodeCIDRMaskSizeIPv4, NodeCIDRMaskSizeIPv6 int
	// QPS and Burst are how many requests a second each controller sends, and how many at
	// once. Default: as many as the API server answers.
	QPS   float32
	Burst int
	// NodeLifecycle, EndpointSlice and EndpointSliceMirroring are the configurations of
	// the controllers of those names.
	NodeLifecycle          nodelifecycle.Config
	EndpointSlice          endpointslice.Config
	EndpointSliceMirroring endpointslicemirroring.Config
	// EndpointUpdatesBatchPeriod is how long changes of pods are gathered before an
	// Endpoints changes. Default 0.
	EndpointUpdatesBatchPeriod time.Duration
	// ResourceQuotaSyncPeriod is when quotas are counted anew. Default 5m.
	ResourceQuotaSyncPeriod time.Duration
	// LegacyTokenUnused is how long a token in a Secret that was made for an account may
	// be unused before it goes. Default a year.
	LegacyTokenUnused time.Duration
	// PersistentVolume is the configuration of the controller that binds claims.
	PersistentVolume persistentvolume.Config
	// NoGarbageCollector leaves objects whose owners are gone.
	NoGarbageCollector bool
	// DisableForceDetachOnTimeout leaves a volume that is mounted on a node which is not
	// ready to that node, unless it is out of service.
	DisableForceDetachOnTimeout bool
	// TerminatedPodThreshold is how many ended pods are kept; below 0: all. Default
	// 12500.
	TerminatedPodThreshold int
	// HorizontalPodAutoscaler is that controller's configuration.
	HorizontalPodAutoscaler horizontalpodautoscaler.Config
	// Features are those that are on though they are off by default. The API server must
	// serve their kinds.
	Features features.Set
}

// leaseName is the Lease of the manager that leads, and what metrics call a manager.
const leaseName = "kube-controller-manager"

// A Manager runs controllers.
type Manager struct {
	cfg     Config
	on      []entry
	running atomic.Pointer[[]string]
}

// Running are the names of the controllers that run now: none while another manager leads.
func (m *Manager) Running() []string {
	if names := m.running.Load(); names != nil {
		return *names
	}
	return nil
}

// New checks cfg and returns a manager that runs the controllers it selects.
func New(cfg Config) (*Manager, error) {
	if cfg.Kube == nil {
		return nil, fmt.Errorf("controller manager: no API server given")
	}
	if cfg.ClientFor == nil {
		cfg.ClientFor = func(string) *rest.Config { return cfg.Kube }
	}
	cfg.SigningDuration = cmp.Or(cfg.SigningDuration, 365*24*time.Hour)
	cfg.LegacyTokenUnused = cmp.Or(cfg.LegacyTokenUnused, 365*24*time.Hour)
	cfg.TerminatedPodThreshold = cmp.Or(cfg.TerminatedPodThreshold, 12500)
	cfg.ResourceQuotaSyncPeriod = cmp.Or(cfg.ResourceQuotaSyncPeriod, 5*time.Minute)
	on, err := choose(cfg.Controllers)
	if err != nil {
		return nil, err
	}
	if missing := missed(cfg.Controllers); len(missing) > 0 {
		slog.Warn("these controllers are not here: that they are asked for changes nothing", "controllers", missing)
	}
	register()
	return &Manager{cfg: cfg, on: on}, nil
}

// missed are the controllers that are asked for by name and are not here.
func missed(selection []string) (names []string) {
	for _, s := range selection {
		if name := canonical(s); absent[name] {
			names = append(names, name)
		}
	}
	return names
}

// CheckSelection says what is wrong with a list of controllers to run.
func CheckSelection(controllers []string) error {
	_, err := choose(controllers)
	return err
}

// choose gives the controllers of the table that selection turns on. What is named
// goes before "*", and off before on.
func choose(selection []string) ([]entry, error) {
	if len(selection) == 0 {
		selection = []string{"*"}
	}
	named := map[string]bool{}
	for _, s := range selection {
		full := canonical(s)
		name := strings.TrimPrefix(full, "-")
		if name != "*" && !slices.ContainsFunc(table, func(e entry) bool { return e.name == name }) && !absent[name] && !ofCloud[name] {
			return nil, fmt.Errorf("--controllers: %q is not in the list of known controllers", strings.TrimPrefix(s, "-"))
		}
		named[full] = true
	}
	var on []entry
	for _, e := range table {
		if named["-"+e.name] {
			continue
		}
		if named[e.name] || named["*"] && !offByDefault[e.name] {
			on = append(on, e)
		}
	}
	return on, nil
}

// Run runs the controllers until ctx ends; with leader election only while
// this manager leads.
func (m *Manager) Run(ctx context.Context) error {
	if !m.cfg.LeaderElect {
		return m.term(ctx)
	}
	return leader.Run(ctx, leader.Config{Kube: unlimited(m.cfg.Kube), Lease: leaseName, Identity: m.cfg.Identity, Times: m.cfg.Election}, m.term)
}

// A term is what the controllers of one time in office share. All of it ends
// with the term.
type term struct {
	Config
	// base is the manager's own client, whose caches all share.
	base      kubernetes.Interface
	informers informers.SharedInformerFactory
	broadcast record.EventBroadcaster
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

// metadata reaches only the metadata of objects, of any resource.
func (t *term) metadata() metadata.Interface {
	c, err := metadata.NewForConfig(t.reach())
	t.err = errors.Join(t.err, err)
	return c
}

// reach is how the controller being built reaches the API server.
func (t *term) reach() *rest.Config {
	cfg := t.Kube
	if t.account != "" {
		cfg = t.ClientFor(t.account)
	}
	cfg = unlimited(cfg)
	if t.QPS > 0 {
		cfg.QPS, cfg.Burst = t.QPS, t.Burst
	}
	return cfg
}

// unlimited lets a client ask as fast as the server answers: the server has
// its own ways to be fair. What a term that is over still sends is not sent.
func unlimited(cfg *rest.Config) *rest.Config {
	cfg = leader.Fenced(cfg)
	cfg.QPS, cfg.RateLimiter = -1, nil
	return cfg
}

// events records under the name upstream's controller has in events.
func (t *term) events(component string) record.EventRecorder {
	return t.broadcast.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
}

func (m *Manager) term(ctx context.Context) error {
	base, err := kubernetes.NewForConfig(unlimited(m.cfg.Kube))
	if err != nil {
		return fmt.Errorf("controller manager's client: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	awaitAccess(ctx, base)
	t := &term{
		Config: m.cfg, base: base,
		// Who wrote which field is half an object's size and no controller's concern.
		informers: informers.NewSharedInformerFactoryWithOptions(base, 0, informers.WithTransform(informer.WithoutManagedFields)),
		broadcast: record.NewBroadcaster(record.WithContext(ctx)),
	}
	defer t.broadcast.Shutdown()
	t.broadcast.StartRecordingToSink(&coreclient.EventSinkImpl{Interface: base.CoreV1().Events("")})

	var parts []run.Component
	var names []string
	for _, e := range m.on {
		t.account = e.account
		r, err := e.build(t)
		if err = errors.Join(err, t.err); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		if r == nil { // nothing to do as configured
			continue
		}
		if w, ok := r.(interface{ SetWorkers(n int) }); ok {
			if n := cmp.Or(m.cfg.ConcurrentSyncs[e.name], m.cfg.Workers); n > 0 {
				w.SetWorkers(n)
			}
		}
		runs := r.Run
		if name, ok := inMetric[e.name]; ok {
			runs = runningcontrollers.During(leaseName, name, runs)
		}
		parts, names = append(parts, run.Func(e.name, runs)), append(names, e.name)
	}
	m.running.Store(&names)
	defer m.running.Store(nil)
	t.informers.StartWithContext(ctx)
	defer t.informers.Shutdown()
	defer cancel()
	slog.DebugContext(ctx, "controllers started", "count", len(parts))
	return run.All(ctx, parts...)
}

// accessWait is how long a start waits for the API server to answer.
const accessWait = 10 * time.Second

// awaitAccess waits until the API server serves this identity. Both may start
// at once, and informers that are refused once wait a second before they ask
// again.
func awaitAccess(ctx context.Context, client kubernetes.Interface) {
	ctx, cancel := context.WithTimeout(ctx, accessWait)
	defer cancel()
	for wait := 5 * time.Millisecond; ; wait = min(wait*3/2, time.Second) {
		_, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil {
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}
