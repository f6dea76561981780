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
	budget    *budget
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
		proxy: p, dataplane: d, pending: p.queue, budget: newBudget(), claims: newClaims(), events: events,
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
	timer   *time.Timer // nil: there is no try before a Service changes
}

func (r *refusal) stop() {
	if r.timer != nil {
		r.timer.Stop()
	}
}

// The times between two tries to write the rules of one Service.
const minRefused, maxRefused = time.Second, 5 * time.Minute

func (y *syncer) stop() {
	for _, r := range y.refused {
		r.stop()
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
	for name, f := range y.find(keys) {
		rules, err := Rules{}, f.err
		if err == nil {
			err = y.budget.refusal(name)
		}
		if err != nil {
			refused[name] = err
		} else {
			rules = y.proxy.plan(name, f)
		}
		// Most of what changes of a Service is of no concern here.
		if !all && y.settled(name, err) && y.claims.has(name, f.created, rules) {
			y.health.retry(name)
			continue
		}
		y.claims.set(name, f.created, rules, changes)
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

// find gives what the API has of these Services, and of those that they take room from
// or leave room to.
func (y *syncer) find(keys map[cache.ObjectName]Rules) map[cache.ObjectName]found {
	all := make(map[cache.ObjectName]found, len(keys))
	for name := range keys {
		f := y.proxy.find(name)
		all[name] = f
		y.budget.set(name, f.created, f.uid, f.pairs)
	}
	turned := map[cache.ObjectName]Rules{}
	y.budget.settle(turned)
	for name := range turned {
		if _, is := all[name]; !is {
			all[name] = y.proxy.find(name)
		}
	}
	return all
}

// settled says whether a Service needs no try for what became of it: it has its rules, or is
// over a bound as before.
func (y *syncer) settled(name cache.ObjectName, err error) bool {
	r := y.refused[name]
	if err == nil || r == nil {
		return err == nil && r == nil
	}
	return r.message == err.Error() && isBound(err)
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
		r.stop()
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
	if isBound(err) {
		r.timer = nil
		return
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

// What is found of a Service: its slices, and how many pairs its rules would be.
type found struct {
	svc     *corev1.Service // nil: it is gone
	slices  []*discoveryv1.EndpointSlice
	created int64 // seconds
	uid     string
	pairs   int
	err     error // why it gets no rules
}

func (p *Proxy) find(name cache.ObjectName) (f found) {
	if name == nodeKey {
		return f
	}
	if f.svc = p.service(name); f.svc == nil {
		return f
	}
	f.created, f.uid = f.svc.CreationTimestamp.Unix(), string(f.svc.UID)
	if !proxied(f.svc) {
		return f
	}
	of, err := p.slices.GetIndexer().ByIndex(informer.ByService, name.String())
	if err != nil {
		f.err = fmt.Errorf("find the endpoints: %w", err)
		return f
	}
	f.slices = make([]*discoveryv1.EndpointSlice, 0, len(of))
	spec := &f.svc.Spec
	pairs := len(spec.LoadBalancerSourceRanges) + len(spec.Ports)*(len(spec.ClusterIPs)+len(spec.ExternalIPs)+len(f.svc.Status.LoadBalancer.Ingress))
	for _, o := range of {
		s := o.(*discoveryv1.EndpointSlice)
		if notForThisProxy(s.Labels) {
			continue
		}
		f.slices = append(f.slices, s)
		pairs += len(s.Ports) + len(s.Endpoints)*min(len(s.Ports), len(spec.Ports))
	}
	if pairs > maxPairs {
		f.err = boundError(fmt.Sprintf("its ports times its addresses and endpoints are %d, more than %d", pairs, maxPairs))
		return f
	}
	f.pairs = pairs
	return f
}

func (p *Proxy) plan(name cache.ObjectName, f found) Rules {
	switch {
	case name == nodeKey:
		return p.planNode()
	case f.svc == nil:
		return Rules{}
	}
	return plan(f.svc, f.slices, p.host())
}
