package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/addons/gateway/acme"
	"knarr/addons/gateway/gatewayapi"
	"knarr/addons/gateway/ingress"
	"knarr/internal/controller"
	"knarr/internal/informer"
	"knarr/internal/leader"
	"knarr/internal/run"
)

// StatusConfig is what a Status needs.
type StatusConfig struct {
	// Kube reaches the API server as ServiceAccount, Registrar as who may write roles.
	Kube, Registrar *rest.Config
	// LeaderElect makes those of several servers take turns, Identity is who this is.
	LeaderElect bool
	Identity    string
	// Domain of the cluster. Default cluster.local.
	Domain string
	// ACME is the authority that certificates are got from. Default: none.
	ACME *acme.Config
	// Inside are the ranges of pods and Services: no URL of a tenant names an address there.
	Inside []netip.Prefix
	// NodeAddresses makes the nodes' addresses those of Ingresses, where nothing gives
	// Services of type LoadBalancer any.
	NodeAddresses bool
}

// A Status is the server's part.
type Status struct {
	cfg    StatusConfig
	client kubernetes.Interface
	api    *apiClient
	// authority is a test's; else the one that the Config names is asked.
	authority acme.Authority
}

// NewStatus puts it together; it starts nothing.
func NewStatus(cfg StatusConfig) (*Status, error) {
	cfg.Kube = leader.Fenced(cfg.Kube)
	client, err := kubernetes.NewForConfig(cfg.Kube)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if cfg.Domain == "" {
		cfg.Domain = "cluster.local"
	}
	api, err := newAPIClient(cfg.Kube)
	if err != nil {
		return nil, err
	}
	return &Status{cfg: cfg, client: client, api: api}, nil
}

// Run writes until ctx ends.
func (s *Status) Run(ctx context.Context) error {
	if err := publish(ctx, s.cfg.Registrar); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	var group run.Group
	defer group.Wait()
	installing, cancel := context.WithCancel(ctx)
	defer cancel()
	group.Loop(installing, "gateway: install", func(ctx context.Context) {
		if err := install(ctx, s.cfg.Registrar); err != nil && ctx.Err() == nil {
			slog.ErrorContext(ctx, "gateway: the Gateway API is not installed", "err", err)
		}
	})
	if !s.cfg.LeaderElect {
		return s.term(ctx)
	}
	return leader.Run(ctx, leader.Config{Kube: s.cfg.Kube, Lease: Name, Identity: s.cfg.Identity}, s.term)
}

// Withdraw removes what an earlier start has made, in a cluster that serves no Ingresses.
func Withdraw(ctx context.Context, registrar *rest.Config) error { return withdraw(ctx, registrar) }

// A statusTerm is what lasts as long as this one leads.
type statusTerm struct {
	*Status
	*world
	events record.EventRecorder
	public *publicService
	nodes  cache.SharedIndexInformer
	ports  map[gatewayapi.GatewayPort]int32 // that the last compilation gave
	// reported are the faults of which events tell already.
	reported map[types.UID][]ingress.Fault
	written  map[metav1.Object]written // routes
	issuer   *acme.Issuer              // nil without an authority
	refused  map[refusedOrder]bool     // of which events say so
}

func (s *Status) term(ctx context.Context) error {
	events, stop := recorder(ctx, s.client, "")
	defer stop()
	nodes := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithTransform(slimNode))
	services := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithTransform(informer.WithoutManagedFields), informers.WithNamespace(Namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = managedBy + "=" + us
	}))
	ofNodes, ofServices := nodes.Core().V1().Nodes().Informer(), services.Core().V1().Services().Informer()
	t := &statusTerm{
		Status: s, world: newWorld(s.client, s.api, s.cfg.Domain, "", s.cfg.Inside), events: events, nodes: ofNodes, reported: map[types.UID][]ingress.Fault{},
		public: &publicService{client: s.client, nodes: ofNodes.GetStore(), services: ofServices.GetStore()},
	}
	t.world.reserve = t.reservePorts
	running, cancel := context.WithCancel(ctx)
	nodes.StartWithContext(running)
	services.StartWithContext(running)
	defer func() { nodes.Shutdown(); services.Shutdown() }()
	defer cancel() // before Shutdown, which waits for the informers
	if !cache.WaitForCacheSync(ctx.Done(), ofNodes.HasSynced, ofServices.HasSynced) {
		return nil
	}
	defer t.issue(running)()
	return t.run(ctx, t.reconcile, watched{ofNodes, moved, nil}, watched{ofServices, func(_, _ metav1.Object) bool { return true }, nil})
}

// moved says whether a Node is somewhere else, or not as ready as it was.
func moved(old, now metav1.Object) bool {
	a, b := old.(*corev1.Node), now.(*corev1.Node)
	return !equality.Semantic.DeepEqual(a.Status, b.Status) || !equality.Semantic.DeepEqual(a.Labels, b.Labels) || (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil)
}

func (t *statusTerm) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if key != everything {
		return 0, nil // endpoints are the nodes' matter, and those of Gateways are written here
	}
	if wait := t.pace.wait(time.Now()); wait > 0 {
		return wait, nil
	}
	select {
	case <-time.After(gatherStatus):
	case <-ctx.Done():
		return 0, nil
	}
	var out *compiled
	var err error
	spent := processorTime(func() { out, err = t.compile(ctx) })
	if err != nil || out == nil {
		return 0, err
	}
	t.pace.took(spent, time.Now())
	mine := t.ours()
	addresses, err := t.public.open(ctx, len(mine) > 0, newPublicService(out.http3, t.thumbprint()), t.cfg.NodeAddresses)
	errs := []error{err}
	reported := make(map[types.UID][]ingress.Fault, len(out.verdicts))
	for _, ing := range mine {
		if v, there := out.verdicts[types.NamespacedName{Namespace: ing.Namespace, Name: ing.Name}]; there {
			t.tell(ing, v.Faults)
			reported[ing.UID] = v.Faults
		}
		if err == nil {
			errs = append(errs, t.write(ctx, ing, addresses))
		}
	}
	if err := t.gateways(ctx, out); err != nil {
		errs = append(errs, err)
	}
	t.order(out.orders)
	t.reported = reported // of Ingresses that are gone there is nothing to remember
	return 0, errors.Join(errs...)
}

// tell records an event for each fault that is new.
func (t *statusTerm) tell(ing *networkingv1.Ingress, faults []ingress.Fault) {
	for _, f := range faults {
		if slices.Contains(t.reported[ing.UID], f) {
			continue
		}
		kind, reason := corev1.EventTypeNormal, "Ignored"
		if f.Warning {
			kind, reason = corev1.EventTypeWarning, "Rejected"
		}
		const most = 1000 // an event's message holds 1,024 bytes
		text := f.Text
		if len(text) > most {
			text = text[:most]
		}
		t.events.Event(ing, kind, reason, text)
		time.Sleep(time.Microsecond) // events are named by their time
	}
}

// write puts the addresses into an Ingress' status, unless they are there.
func (t *statusTerm) write(ctx context.Context, ing *networkingv1.Ingress, addresses []networkingv1.IngressLoadBalancerIngress) error {
	if slices.EqualFunc(ing.Status.LoadBalancer.Ingress, addresses, func(a, b networkingv1.IngressLoadBalancerIngress) bool {
		return a.IP == b.IP && a.Hostname == b.Hostname && len(a.Ports) == 0
	}) {
		return nil
	}
	changed := ing.DeepCopy()
	changed.Status.LoadBalancer.Ingress = addresses
	_, err := t.Status.client.NetworkingV1().Ingresses(ing.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if controller.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the addresses of Ingress %s/%s: %w", ing.Namespace, ing.Name, err)
	}
	return nil
}
