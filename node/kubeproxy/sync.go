package kubeproxy

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/internal/informer"
	"knarr/internal/run"
)

// A syncer writes what is pending, and reports to the users of Services that do not
// get all their rules.
type syncer struct {
	proxy     *Proxy
	dataplane Dataplane
	pending   *pending
	claims    *claims
	events    record.EventRecorder
	conflict  map[cache.ObjectName]string   // the message of the last event
	refused   map[cache.ObjectName]*refusal // Services set aside
	health    *serviceHealth
	missing   missing
	triggers  []trigger // of changes that are not yet written
}

func newSyncer(p *Proxy, d Dataplane, events record.EventRecorder) *syncer {
	y := &syncer{
		proxy: p, dataplane: d, pending: p.queue, claims: newClaims(), events: events,
		conflict: map[cache.ObjectName]string{}, refused: map[cache.ObjectName]*refusal{},
		missing: missing{p.metrics, map[cache.ObjectName][]prometheus.Gauge{}},
	}
	y.health = &serviceHealth{healthy: func() bool { return p.Err() == nil }, servers: map[cache.ObjectName]*healthServer{}, failed: y.healthFailed, again: p.queue.add}
	return y
}

// A refusal is a Service without rules, until the next try.
type refusal struct {
	message string
	wait    time.Duration
	timer   *time.Timer
}

// The times between two tries to write the rules of one Service.
const minRefused, maxRefused = time.Second, 5 * time.Minute

func (y *syncer) stop() {
	for _, r := range y.refused {
		r.timer.Stop()
	}
	y.health.close()
}

// healthFailed has the user of a Service know that load balancers cannot ask.
func (y *syncer) healthFailed(name cache.ObjectName, port uint16, err error) {
	slog.Warn("listen on a health check node port", "service", name, "port", port, "err", err)
	y.warn(name, "FailedToStartServiceHealthcheck", fmt.Sprintf("node %s failed to start healthcheck %q on port %d: %v", y.proxy.cfg.NodeName, name, port, err))
}

// sync writes the Services that are pending and those that they have an effect
// on, or all.
func (y *syncer) sync(ctx context.Context, all bool) error {
	keys, triggers := y.pending.take()
	if y.triggers = append(y.triggers, triggers...); len(y.triggers) > maxTriggers {
		y.triggers = y.triggers[:maxTriggers]
	}
	m := y.proxy.metrics
	m.endpointsPending.Set(0)
	m.servicePending.Set(0)
	if all {
		keys[nodeKey] = Rules{}
		for name := range y.claims.wanted {
			keys[name] = Rules{}
		}
		for _, o := range y.proxy.services.GetStore().List() {
			keys[cache.MetaObjectToName(o.(*corev1.Service))] = Rules{}
		}
	}
	changes, refused := map[cache.ObjectName]Rules{}, map[cache.ObjectName]error{}
	for name := range keys {
		svc, rules, err := y.proxy.plan(name)
		if err != nil {
			refused[name] = err
		}
		created := int64(0)
		if svc != nil {
			created = svc.CreationTimestamp.Unix()
		}
		// Most of what changes of a Service is of no concern here.
		if !all && err == nil && y.refused[name] == nil && y.claims.has(name, created, rules) {
			y.health.retry(name)
			continue
		}
		y.claims.set(name, created, rules, changes)
	}
	if len(changes) == 0 && !all {
		y.pending.written()
		y.observeTriggers()
		return nil
	}
	for name := range changes {
		rules, lost := y.claims.rules(name)
		changes[name] = rules
		y.recordConflict(name, lost)
		y.missing.set(name, rules)
	}
	began := time.Now()
	bad, err := y.dataplane.Apply(changes, all)
	if err != nil {
		return err
	}
	if y.proxy.cfg.Dataplane != nil {
		m.observeApply(all, began)
	}
	y.pending.written()
	y.observeTriggers()
	for name, err := range bad {
		refused[name] = err
	}
	for name := range changes {
		y.setAside(ctx, name, refused[name])
		y.health.set(name, changes[name].HealthPort, changes[name].Local)
	}
	return nil
}

// observeTriggers notes that the kernel has what these changes ask for.
func (y *syncer) observeTriggers() {
	y.proxy.metrics.observeTriggers(y.triggers)
	y.triggers = nil
}

// recordConflict writes an event when a Service loses ports to others, or to
// other ones than before.
func (y *syncer) recordConflict(name cache.ObjectName, lost []loss) {
	if len(lost) == 0 {
		delete(y.conflict, name)
		return
	}
	text := conflict(name, lost)
	if y.conflict[name] == text {
		return
	}
	y.conflict[name] = text
	y.warn(name, "ServicePortConflict", text)
}

// setAside has a refused Service tried again, ever more rarely: its error is its
// own, and reported once. Without an error it is as any other.
func (y *syncer) setAside(ctx context.Context, name cache.ObjectName, err error) {
	r := y.refused[name]
	if r != nil {
		r.timer.Stop()
	}
	if err == nil {
		delete(y.refused, name)
		return
	}
	if r == nil {
		r = &refusal{wait: minRefused}
		y.refused[name] = r
	}
	if message := err.Error(); message != r.message {
		r.message = message
		slog.WarnContext(ctx, "service gets no rules", "service", name, "err", err)
		y.warn(name, "FailedToWriteServiceRules", "This Service gets no rules on this node: "+message)
	}
	r.timer = run.AfterFunc("kube-proxy retry", r.wait, func() { y.pending.add(name) })
	r.wait = min(2*r.wait, maxRefused)
}

func (y *syncer) warn(name cache.ObjectName, reason, text string) {
	if svc := y.proxy.service(name); svc != nil {
		ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, ResourceVersion: svc.ResourceVersion}
		y.events.Event(ref, corev1.EventTypeWarning, reason, text)
	}
}

func (p *Proxy) service(name cache.ObjectName) *corev1.Service {
	o, ok, err := p.services.GetStore().GetByKey(name.String())
	if err != nil || !ok {
		return nil
	}
	return o.(*corev1.Service)
}

// maxPairs bounds the rules of one Service, ports times endpoints and ports
// times addresses: what a user may write in a few objects would otherwise be
// gigabytes of rules. The ports of slices count too, which have to be gone through.
const maxPairs = 100_000

func (p *Proxy) plan(name cache.ObjectName) (*corev1.Service, Rules, error) {
	if name == nodeKey {
		return nil, p.planNode(), nil
	}
	svc := p.service(name)
	if svc == nil {
		return nil, Rules{}, nil
	}
	found, err := p.slices.GetIndexer().ByIndex(informer.ByService, name.String())
	if err != nil {
		return svc, Rules{}, fmt.Errorf("find the endpoints: %w", err)
	}
	eps := make([]*discoveryv1.EndpointSlice, 0, len(found))
	pairs := len(svc.Spec.LoadBalancerSourceRanges) + len(svc.Spec.Ports)*(len(svc.Spec.ClusterIPs)+len(svc.Spec.ExternalIPs)+len(svc.Status.LoadBalancer.Ingress))
	for _, o := range found {
		s := o.(*discoveryv1.EndpointSlice)
		if notForThisProxy(s.Labels) {
			continue
		}
		eps = append(eps, s)
		pairs += len(s.Ports) + len(s.Endpoints)*min(len(s.Ports), len(svc.Spec.Ports))
	}
	if pairs > maxPairs {
		return svc, Rules{}, fmt.Errorf("its ports times its addresses and endpoints are %d, more than %d", pairs, maxPairs)
	}
	return svc, plan(svc, eps, p.host()), nil
}
