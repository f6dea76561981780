package kubelet

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

const maxNames = 5

func (k *Kubelet) wakeNode() {
	select {
	case k.nodeWake <- struct{}{}:
	default:
	}
}

func (k *Kubelet) nodeRef() *corev1.ObjectReference {
	ref := &corev1.ObjectReference{Kind: "Node", Name: k.cfg.NodeName, UID: types.UID(k.cfg.NodeName)}
	return ref
}

// registerNode creates the Node if it is to, or takes over the one that is there, and
// keeps its status true: at once when something of the node changes, nodeStatusUpdateFrequency
// after somebody wrote it, otherwise every nodeStatusReportFrequency.
func (k *Kubelet) registerNode(ctx context.Context) {
	k.events.Event(k.nodeRef(), corev1.EventTypeNormal, "Starting", "Starting kubelet.")
	// One look at the runtime first, so that the Node is right from the start.
	if !k.asked.waitFor(ctx, time.Second) {
		return
	}
	k.nodeStart.try(time.Now())
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 7*time.Second) {
		err := k.takeNode(ctx)
		if err == nil {
			break
		}
		if ctx.Err() == nil {
			slog.Warn("register node", "node", k.cfg.NodeName, "err", err)
		}
		if !sleep(ctx, wait) {
			return
		}
	}
	k.registered.open()
	k.wg.Loop(ctx, "kubelet: follow the node", k.followNode)
	timer, due := time.NewTimer(0), time.Now()
	defer timer.Stop()
	next := func(d time.Duration) {
		due = time.Now().Add(d)
		timer.Reset(d)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.nodeNews: // not at once: two writers who disagree would never rest
			if d := k.cfg.Settings.NodeStatusUpdateFrequency.Duration; time.Until(due) > d {
				next(d)
			}
			continue
		case <-k.nodeWake:
		case <-timer.C:
		}
		d := k.cfg.Settings.NodeStatusReportFrequency.Duration
		if err := k.writeNodeStatus(ctx); err != nil && ctx.Err() == nil {
			k.warnNew("write node status", err)
			d = 2 * time.Second
		}
		next(d)
	}
}

// followNode keeps the newest version of the Node at hand.
func (k *Kubelet) followNode(ctx context.Context) {
	look := func() {
		select {
		case k.nodeNews <- struct{}{}:
		default:
		}
	}
	_, inf := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(k.client.CoreV1().RESTClient(), "nodes", "", fields.OneTermEqualSelector("metadata.name", k.cfg.NodeName)),
		ObjectType:    &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) {
				k.sawNode(o.(*corev1.Node))
				look()
			},
			UpdateFunc: func(was, o any) {
				before, n := was.(*corev1.Node), o.(*corev1.Node)
				k.sawNode(n)
				// A write of our own may have come with somebody else's: one look more.
				if len(wrongLabels(n)) > 0 || before.Spec.Unschedulable != n.Spec.Unschedulable || !equality.Semantic.DeepEqual(before.Status, n.Status) {
					look()
				}
			},
		},
	})
	inf.Run(ctx.Done())
}

// sawNode keeps a Node that the API server answered with, unless a newer one is
// known.
func (k *Kubelet) sawNode(n *corev1.Node) {
	k.nodeMu.Lock()
	defer k.nodeMu.Unlock()
	if k.node.Load() == k.newest(n) {
		return
	}
	k.node.Store(n)
	if k.drivers != nil {
		k.drivers.NodeChanged(n)
	}
}

// newest is the Node n, or what is known of the same Node if that is newer: an
// API server's cache may be behind what it has answered to a write.
func (k *Kubelet) newest(n *corev1.Node) *corev1.Node {
	known := k.node.Load()
	if known == nil || known.UID != n.UID {
		return n
	}
	have, err := strconv.ParseUint(known.ResourceVersion, 10, 64)
	if got, err2 := strconv.ParseUint(n.ResourceVersion, 10, 64); err != nil || err2 != nil || got > have {
		return n
	}
	return known
}

func (k *Kubelet) labels() map[string]string {
	l := maps.Clone(k.cfg.NodeLabels)
	if l == nil {
		l = map[string]string{}
	}
	l[corev1.LabelHostname] = k.cfg.Hostname
	for _, key := range []string{corev1.LabelOSStable, "beta.kubernetes.io/os"} {
		l[key] = runtime.GOOS
	}
	for _, key := range []string{corev1.LabelArchStable, "beta.kubernetes.io/arch"} {
		l[key] = runtime.GOARCH
	}
	return l
}

// wrongLabels are what a Node says of its system and processor where that is not so, as
// it should be: pods are placed by it.
func wrongLabels(n *corev1.Node) map[string]any {
	wrong := map[string]any{}
	for key, is := range map[string]string{corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH} {
		if n.Labels[key] != is {
			wrong[key] = is
		}
	}
	return wrong
}

// patchMetadata sets labels and annotations of the Node; nil removes one.
func (k *Kubelet) patchMetadata(ctx context.Context, labels, annotations map[string]any) (*corev1.Node, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": annotations}})
	if err != nil {
		return nil, err
	}
	got, err := k.client.CoreV1().Nodes().Patch(ctx, k.cfg.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, err
	}
	k.sawNode(got)
	return got, nil
}

// takeNode makes the Node, or takes the one that is there. A kubelet that is not to register
// only takes it, and labels and taints nothing: somebody else makes it.
func (k *Kubelet) takeNode(ctx context.Context) error {
	if *k.cfg.Settings.RegisterNode {
		return k.register(ctx)
	}
	n, err := k.client.CoreV1().Nodes().Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	k.sawNode(n)
	return nil
}

// controllerAttaches has controllers attach volumes to the Node: without it none does.
const controllerAttaches = "volumes.kubernetes.io/controller-managed-attach-detach"

// register makes the Node, or gives the one that is there what this kubelet has of it.
func (k *Kubelet) register(ctx context.Context) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: k.cfg.NodeName, Labels: k.labels(),
			Annotations: map[string]string{controllerAttaches: "true"},
		},
		Spec: corev1.NodeSpec{Taints: k.cfg.Settings.RegisterWithTaints, ProviderID: k.cfg.Settings.ProviderID},
	}
	if k.cfg.ExternalCloud {
		node.Spec.Taints = append(slices.Clone(node.Spec.Taints), corev1.Taint{
			Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule})
	}
	if ips := k.providedIPs(); ips != "" {
		node.Annotations[providedNodeIP] = ips
	}
	k.setNodeStatus(node)
	got, err := k.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err == nil {
		k.nodeStart.made(time.Now())
		k.hugepages.Store(true)
		k.nodeStart.shown(got, time.Now())
		k.sawNode(got)
		return nil
	}
	if !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) {
		return err
	}
	have, err := k.client.CoreV1().Nodes().Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	k.sawNode(have)
	labels := map[string]any{}
	for key, v := range k.labels() {
		if have.Labels[key] != v {
			labels[key] = v
		}
	}
	annotations := map[string]any{}
	if have.Annotations[controllerAttaches] != "true" { // somebody else made it
		annotations[controllerAttaches] = "true"
	}
	if want, is := k.providedIPs(), have.Annotations[providedNodeIP]; want != is {
		annotations[providedNodeIP] = nil
		if want != "" {
			annotations[providedNodeIP] = want
		}
	}
	if len(labels)+len(annotations) == 0 {
		return nil
	}
	_, err = k.patchMetadata(ctx, labels, annotations)
	return err
}

// warnNew logs what fails again and again, in the same words once in a while.
func (k *Kubelet) warnNew(what string, err error) {
	if k.news.IsNew(what, err.Error()) {
		slog.Warn(what, "err", err)
	}
}
