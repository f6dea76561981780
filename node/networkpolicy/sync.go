package networkpolicy

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/internal/run"
)

// A syncer takes what is pending into the index and its changes to the kernel,
// and reports to the users of policies that are not in force.
type syncer struct {
	controller *Controller
	dataplane  Dataplane
	pending    *pending
	index      *index
	events     record.EventRecorder
	refused    map[cache.ObjectName]string // the message of the last event
	retry      *time.Timer
	wait       time.Duration // until the next try
	// unknown are new pods that the API has not shown yet, until the kernel opens
	// them by itself.
	unknown map[netip.Addr]newcomer
}

// A newcomer is a new pod, by its address.
type newcomer struct {
	uid   types.UID
	until time.Time
}

// The times between two tries to write policies that the kernel refuses.
const minRefused, maxRefused = time.Second, 5 * time.Minute

func (y *syncer) stop() {
	if y.retry != nil {
		y.retry.Stop()
	}
}

// sync writes what is pending, or everything. Without pods there is no policy
// either, and new pods are opened at once.
func (y *syncer) sync(ctx context.Context, all, pods bool) error {
	w := y.pending.take()
	all = all || w.all
	if all {
		y.everything(&w)
	}
	for name := range w.namespaces {
		y.namespace(name)
	}
	for name := range w.policies {
		y.policy(name)
	}
	for name := range w.pods {
		y.pod(name)
	}
	open := y.attach(w.attached, pods)
	var changes *Changes
	if all {
		changes = y.index.whole()
	} else if changes = y.index.take(); changes.empty() {
		y.report(ctx, changes, nil)
		return y.dataplane.Open(open)
	}
	refused, err := y.dataplane.Apply(changes, all)
	if err != nil {
		y.pending.add(func(p *work) { p.attached = append(p.attached, w.attached...) })
		return err
	}
	y.report(ctx, changes, refused)
	return y.dataplane.Open(open)
}

// everything has all objects looked at, also those that are gone.
func (y *syncer) everything(w *work) {
	c := y.controller
	if c.pods != nil {
		for _, o := range c.namespaces.GetStore().List() {
			w.namespaces[o.(*corev1.Namespace).Name] = true
		}
		for _, o := range c.pods.GetStore().List() {
			w.pods[cache.MetaObjectToName(o.(*corev1.Pod))] = true
		}
	}
	for _, o := range c.policies.GetStore().List() {
		w.policies[cache.MetaObjectToName(o.(*networkingv1.NetworkPolicy))] = true
	}
	for name := range y.index.namespaces {
		w.namespaces[name] = true
	}
	for name := range y.index.policies {
		w.policies[name] = true
	}
	for name := range y.index.pods {
		w.pods[name] = true
	}
}

func (y *syncer) namespace(name string) {
	if o, ok, err := y.controller.namespaces.GetStore().GetByKey(name); err == nil && ok {
		y.index.setNamespace(name, o.(*corev1.Namespace).Labels, true)
		return
	}
	y.index.setNamespace(name, nil, false)
}

func (y *syncer) policy(name cache.ObjectName) {
	if np := y.object(name); np != nil {
		y.index.setPolicy(name, plan(np))
		return
	}
	y.index.setPolicy(name, nil)
	delete(y.refused, name)
}

func (y *syncer) object(name cache.ObjectName) *networkingv1.NetworkPolicy {
	if o, ok, err := y.controller.policies.GetStore().GetByKey(name.String()); err == nil && ok {
		return o.(*networkingv1.NetworkPolicy)
	}
	return nil
}

func (y *syncer) pod(name cache.ObjectName) {
	var p *pod
	if o, ok, err := y.controller.pods.GetStore().GetByKey(name.String()); err == nil && ok {
		p = podOf(o.(*corev1.Pod), y.controller.cfg.NodeName)
	}
	y.index.setPod(name, p)
}

// attach takes over the addresses of new pods, and gives those that can be opened
// once what is pending is written. A pod that the API has not shown yet waits;
// the kernel opens it after two seconds.
func (y *syncer) attach(list []attachment, pods bool) (open []netip.Addr) {
	now := time.Now()
	for _, a := range list {
		y.unknown[a.addr] = newcomer{a.uid, now.Add(ClosedFor)}
	}
	for a, n := range y.unknown {
		known := y.index.setAttached(n.uid, a)
		if known || !pods {
			open = append(open, a)
		}
		if known || !pods || n.until.Before(now) {
			delete(y.unknown, a)
		}
	}
	return open
}

// report tells the users of policies that are not in force, once for each
// reason, and has the kernel tried again.
func (y *syncer) report(ctx context.Context, changes *Changes, refused map[cache.ObjectName]error) {
	for _, ch := range changes.Chains {
		if ch.Now == nil || ch.Now.Jumps != nil {
			continue
		}
		name := ch.Now.Policy
		err := refused[name]
		if p := y.index.policies[name]; err == nil && p != nil {
			err = p.err
		}
		if err == nil {
			delete(y.refused, name)
			continue
		}
		y.tell(ctx, name, err)
	}
	for _, p := range y.index.refused {
		if p.full != nil {
			y.tell(ctx, p.name, p.full)
		}
	}
	y.index.refused = nil
	if len(refused) == 0 {
		if len(y.refused) == 0 {
			y.wait = minRefused
		}
		return
	}
	y.stop()
	y.retry = run.AfterFunc("network policy retry", y.wait, func() { y.pending.add(func(w *work) { w.all = true }) })
	y.wait = min(2*y.wait, maxRefused)
}

// tell says once why a policy allows nothing.
func (y *syncer) tell(ctx context.Context, name cache.ObjectName, err error) {
	if message := err.Error(); y.refused[name] != message {
		y.refused[name] = message
		slog.WarnContext(ctx, "network policy allows nothing", "policy", name, "err", err)
		y.warn(name, message)
	}
}

func (y *syncer) warn(name cache.ObjectName, message string) {
	if np := y.object(name); np != nil {
		ref := &corev1.ObjectReference{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy", Namespace: np.Namespace, Name: np.Name, UID: np.UID, ResourceVersion: np.ResourceVersion}
		y.events.Event(ref, corev1.EventTypeWarning, "FailedToWriteNetworkPolicyRules", "This NetworkPolicy allows nothing on this node: "+message)
	}
}
