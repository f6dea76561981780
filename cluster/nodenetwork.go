package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"knarr/internal/run"
	"knarr/node/cni"
)

// The times between two tries to set up the pod network, and between two looks
// whether it is still there: a firewall that starts anew flushes all tables, and
// with them what keeps pods from speaking for each other.
const (
	minInstall, maxInstall = time.Second, time.Minute
	lookAtNetwork          = 20 * time.Second
	settleFirewall         = 500 * time.Millisecond
)

// install sets up the pod network, as often as it takes; an error is logged
// when it is another than before.
func (n *node) install(ctx context.Context, try func() error) bool {
	for wait := minInstall; ; wait = min(2*wait, maxInstall) {
		err := try()
		if n.health.set("pod network", err) && err != nil {
			slog.ErrorContext(ctx, "set up the pod network, trying again until it succeeds", "err", err)
		}
		if err == nil {
			return true
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false
		}
	}
}

// keepInstalled repairs the pod network when somebody takes it away, and lets pods through
// the host's other firewalls: after each change of nftables that is not knarr's, at most
// once in settleFirewall, and now and then without one.
func (n *node) keepInstalled(ctx context.Context, client kubernetes.Interface, cfg cni.Config) {
	changed := make(chan struct{}, 1)
	var group run.Group
	defer group.Wait()
	group.Go("changes of nftables", func() {
		supervise(ctx, component{"changes of nftables", func(ctx context.Context) error {
			return cni.Changes(ctx, func() {
				select {
				case changed <- struct{}{}:
				default:
				}
			})
		}})
	})
	group.Go("commands of the pod network", func() {
		supervise(ctx, component{"commands of the pod network", func(ctx context.Context) error { return cni.Serve(ctx, cfg) }})
	})
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	events := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: n.opts.NodeName})
	look := time.NewTicker(lookAtNetwork)
	defer look.Stop()
	var logged string
	for {
		if err := cni.Intact(cfg); err != nil {
			slog.WarnContext(ctx, "repair the pod network", "err", err)
			n.install(ctx, func() error { return cni.Install(cfg) })
		}
		err := cni.Admit(cfg)
		if text := fmt.Sprint(err); err != nil && text != logged {
			slog.WarnContext(ctx, "a firewall of this host may drop what pods send", "err", err)
			n.firewallEvent(events, err)
			logged = text
		}
		select {
		case <-time.After(settleFirewall): // a firewall that starts anew writes several times
		case <-ctx.Done():
			return
		}
		select {
		case <-look.C:
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// firewallEvent says in an event of the Node what the log says, for those who see no
// node's log.
func (n *node) firewallEvent(events record.EventRecorder, err error) {
	about := &corev1.ObjectReference{Kind: "Node", Name: n.opts.NodeName, UID: types.UID(n.opts.NodeName)} // as the kubelet's events
	text := fmt.Sprintf("A firewall of this host may drop what pods send: %v", err)
	events.Event(about, corev1.EventTypeWarning, "FirewallMayDropPodTraffic", strings.ToValidUTF8(text[:min(len(text), maxEventText)], ""))
}

// maxEventText is the longest message that the API server takes.
const maxEventText = 1024
