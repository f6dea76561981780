package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/tools/cache"

	"knarr/node/kubelet/nodeallocatable"
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

func (k *Kubelet) register(ctx context.Context) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: k.cfg.NodeName, Labels: k.labels(),
			Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
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

// writeNodeStatus patches what changed, and the heartbeat with it.
func (k *Kubelet) writeNodeStatus(ctx context.Context) error {
	asked, cancel := context.WithTimeout(ctx, k.heartbeat)
	have, err := k.client.CoreV1().Nodes().Get(asked, k.cfg.NodeName, metav1.GetOptions{ResourceVersion: "0"})
	cancel()
	if apierrors.IsNotFound(err) {
		return k.takeNode(ctx) // deleted from under us
	}
	if err != nil {
		return err
	}
	have = k.newest(have)
	if wrong := wrongLabels(have); len(wrong) > 0 {
		if patched, err := k.patchMetadata(ctx, wrong, nil); err == nil {
			have = patched
		} else if ctx.Err() == nil { // what it says of its state matters more
			slog.Warn("put the labels of the Node right", "err", err)
		}
	}
	k.tellNodeChanges(have)
	k.updateImages(ctx)
	want := have.DeepCopy()
	if !k.hugepages.Load() {
		dropHugepages(&want.Status, k.machine.hugepages)
	}
	k.setNodeStatus(want)
	if equality.Semantic.DeepEqual(have.Status, want.Status) {
		k.hugepages.Store(true)
		k.drivers.ReportedInUse(want.Status.VolumesInUse)
		return nil
	}
	was, err := json.Marshal(have)
	if err != nil {
		return err
	}
	is, err := json.Marshal(want)
	if err != nil {
		return err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(was, is, corev1.Node{})
	if err != nil {
		return err
	}
	patch, err = replaceAddresses(patch, want.Status.Addresses)
	if err != nil {
		return err
	}
	asked, cancel = context.WithTimeout(ctx, k.heartbeat)
	defer cancel()
	got, err := k.client.CoreV1().Nodes().Patch(asked, have.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return err
	}
	k.nodeStart.shown(got, time.Now())
	k.sawNode(got)
	k.drivers.ReportedInUse(want.Status.VolumesInUse)
	k.recordTransitions(have, want)
	return nil
}

// replaceAddresses makes a patch replace the addresses as a whole: merging
// them by type would lose the second address of a type.
func replaceAddresses(patch []byte, want []corev1.NodeAddress) ([]byte, error) {
	var p map[string]any
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, err
	}
	status, ok := p["status"].(map[string]any)
	if !ok {
		return patch, nil
	}
	if _, ok := status["addresses"]; !ok {
		return patch, nil
	}
	list := []any{map[string]any{"$patch": "replace"}}
	for _, a := range want {
		list = append(list, map[string]any{"type": a.Type, "address": a.Address})
	}
	delete(status, "$setElementOrder/addresses")
	status["addresses"] = list
	return json.Marshal(p)
}

func (k *Kubelet) recordTransitions(have, want *corev1.Node) {
	status := func(n *corev1.Node, t corev1.NodeConditionType) corev1.ConditionStatus {
		for _, c := range n.Status.Conditions {
			if c.Type == t {
				return c.Status
			}
		}
		return ""
	}
	names := []struct {
		t           corev1.NodeConditionType
		true, false string
	}{
		{corev1.NodeMemoryPressure, "NodeHasInsufficientMemory", "NodeHasSufficientMemory"},
		{corev1.NodeDiskPressure, "NodeHasDiskPressure", "NodeHasNoDiskPressure"},
		{corev1.NodePIDPressure, "NodeHasInsufficientPID", "NodeHasSufficientPID"},
		{corev1.NodeReady, "NodeReady", "NodeNotReady"},
	}
	for _, n := range names {
		is := status(want, n.t)
		if is == status(have, n.t) {
			continue
		}
		reason := n.false
		if is == corev1.ConditionTrue {
			reason = n.true
		}
		k.events.Event(k.nodeRef(), corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", k.cfg.NodeName, reason))
	}
}

// dropHugepages takes pages of sizes away that the machine had at another start.
func dropHugepages(s *corev1.NodeStatus, has map[string]int64) {
	gone := func(name corev1.ResourceName, _ resource.Quantity) bool {
		size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		_, there := has[size]
		return ok && !there
	}
	maps.DeleteFunc(s.Capacity, gone)
	maps.DeleteFunc(s.Allocatable, gone)
}

// setResources shows what the node has and what of it pods can have. Extended resources
// that others put into the capacity stay and can be had whole, until they are taken out.
func setResources(s *corev1.NodeStatus, capacity, allocatable corev1.ResourceList) {
	for name, q := range capacity {
		s.Capacity[name], s.Allocatable[name] = q, allocatable[name]
	}
	maps.DeleteFunc(s.Allocatable, func(name corev1.ResourceName, _ resource.Quantity) bool {
		_, there := s.Capacity[name]
		return !there && strings.Contains(string(name), "/")
	})
	for name, q := range s.Capacity {
		if _, own := capacity[name]; !own {
			s.Allocatable[name] = q
		}
	}
}

// setNodeStatus fills the status in.
func (k *Kubelet) setNodeStatus(n *corev1.Node) {
	n.Status.Addresses = k.addresses(n)
	capacity := k.capacity()
	if n.Status.Capacity == nil {
		n.Status.Capacity = corev1.ResourceList{}
	}
	if n.Status.Allocatable == nil {
		n.Status.Allocatable = corev1.ResourceList{}
	}
	setResources(&n.Status, capacity, k.reserve(capacity))
	k.showDevices(&n.Status)
	m := k.machine
	n.Status.NodeInfo = corev1.NodeSystemInfo{
		MachineID: m.machineID, SystemUUID: m.uuid, BootID: m.bootID, KernelVersion: m.kernel, OSImage: m.osImage,
		ContainerRuntimeVersion: k.runtimeName() + "://" + runtimeVersion(k.runtimeInfo.Load().GetRuntimeVersion()), KubeletVersion: k.cfg.Version, KubeProxyVersion: "",
		OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH, Swap: &corev1.NodeSwapStatus{Capacity: &m.swap},
	}
	if m.swap == 0 {
		n.Status.NodeInfo.Swap = nil
	}
	if l := k.imageList.Load(); l != nil {
		n.Status.Images = *l
	}
	if _, p, err := net.SplitHostPort(k.cfg.Listen); err == nil {
		var port int32
		if _, err := fmt.Sscan(p, &port); err == nil {
			n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
		}
	}
	n.Status.VolumesInUse = k.drivers.VolumesInUse()
	n.Status.DeclaredFeatures = slices.Clone(declaredFeatures)
	k.setHandlers(n)
	k.setConditions(n, time.Now())
}

// declaredFeatures are those of this kubelet that the scheduler and the API server ask
// for before they give it a pod, or a change of one, that needs them, and before they hand it
// a stream by WebSocket; sorted. Their names are upstream's (KEP-5328).
var declaredFeatures = []string{"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits"}

// runtimeVersion is a version without what its builder did not know of it.
func runtimeVersion(v string) string { return strings.TrimSuffix(v, "+unknown") }

func (k *Kubelet) setHandlers(n *corev1.Node) {
	if f := k.features.Load(); f != nil {
		groups := f.SupplementalGroupsPolicy
		n.Status.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &groups}
	}
	hs := k.handlers.Load()
	if hs == nil {
		return
	}
	n.Status.RuntimeHandlers = nil
	for _, h := range *hs {
		rro, userns := h.Features.GetRecursiveReadOnlyMounts(), h.Features.GetUserNamespaces()
		n.Status.RuntimeHandlers = append(n.Status.RuntimeHandlers, corev1.NodeRuntimeHandler{
			Name: h.Name, Features: &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &rro, UserNamespaces: &userns}})
	}
	slices.SortFunc(n.Status.RuntimeHandlers, func(a, b corev1.NodeRuntimeHandler) int { return strings.Compare(a.Name, b.Name) })
}

// providedNodeIP is the annotation that tells a cloud controller the addresses which
// were chosen for the node.
const providedNodeIP = "alpha.kubernetes.io/provided-node-ip"

// providedIPs is its value; "" for none.
func (k *Kubelet) providedIPs() string {
	if !k.cfg.ExternalCloud || !k.cfg.NodeIPsGiven {
		return ""
	}
	var ips []string
	for _, ip := range k.cfg.NodeIPs {
		ips = append(ips, ip.String())
	}
	return strings.Join(ips, ",")
}

func (k *Kubelet) addresses(n *corev1.Node) (out []corev1.NodeAddress) {
	if k.cfg.ExternalCloud && len(n.Status.Addresses) > 0 {
		return n.Status.Addresses // the cloud controller's word counts
	}
	for _, ip := range k.cfg.NodeIPs {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	for _, ip := range k.cfg.ExternalIPs {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip.String()})
	}
	return append(out, corev1.NodeAddress{Type: corev1.NodeHostName, Address: k.cfg.Hostname})
}

// nodeAddresses are those of the Node as it is, none before there is one.
func (k *Kubelet) nodeAddresses() []corev1.NodeAddress {
	n := k.node.Load()
	if n == nil {
		return nil
	}
	return n.Status.Addresses
}

func (k *Kubelet) capacity() corev1.ResourceList {
	l := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(k.machine.cpus), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(k.machine.memory, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(int64(k.maxPods()), resource.DecimalSI),
	}
	if d, err := k.statDisk(k.cfg.RootDir); err == nil && *k.cfg.Settings.LocalStorageCapacityIsolation {
		l[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(d.size), resource.BinarySI)
	}
	maps.Copy(l, k.machineHugepages())
	return l
}

// machineHugepages are the bytes of each size of huge pages that the machine has.
func (k *Kubelet) machineHugepages() corev1.ResourceList {
	l := corev1.ResourceList{}
	for size, n := range k.machine.hugepages {
		l[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size)] = *resource.NewQuantity(n, resource.BinarySI)
	}
	return l
}

// reserve is what is left for pods of a capacity.
func (k *Kubelet) reserve(capacity corev1.ResourceList) corev1.ResourceList {
	hard := k.hardReserved(capacity)
	out := nodeallocatable.Config{Capacity: capacity, Settings: k.cfg.Settings}.Absolute()
	for name, q := range out {
		q.Sub(hard[name])
		switch name {
		case corev1.ResourceMemory:
			for _, n := range k.machine.hugepages {
				q.Sub(*resource.NewQuantity(n, resource.BinarySI))
			}
		case corev1.ResourceEphemeralStorage:
			q.Format = resource.DecimalSI
		}
		if q.Sign() < 0 {
			q.Set(0)
		}
		out[name] = q
	}
	return out
}

func (k *Kubelet) allocatable() corev1.ResourceList {
	if n := k.node.Load(); n != nil && len(n.Status.Allocatable) > 0 {
		return n.Status.Allocatable
	}
	return k.reserve(k.capacity())
}

func (k *Kubelet) setConditions(n *corev1.Node, now time.Time) {
	set := func(c corev1.NodeCondition) {
		c.LastHeartbeatTime = metav1.NewTime(now.Truncate(time.Second))
		c.LastTransitionTime = c.LastHeartbeatTime
		for i := range n.Status.Conditions {
			if o := &n.Status.Conditions[i]; o.Type == c.Type {
				if o.Status == c.Status {
					c.LastTransitionTime = o.LastTransitionTime
					if o.Reason == c.Reason && o.Message == c.Message && now.Sub(o.LastHeartbeatTime.Time) < k.cfg.Settings.NodeStatusReportFrequency.Duration-time.Second {
						c.LastHeartbeatTime = o.LastHeartbeatTime // unchanged
					}
				}
				*o = c
				return
			}
		}
		n.Status.Conditions = append(n.Status.Conditions, c)
	}
	p := k.pressure.Load()
	pressureCondition := func(t corev1.NodeConditionType, on bool, yes, no, yesMsg, noMsg string) {
		c := corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, Reason: no, Message: noMsg}
		if on {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, yes, yesMsg
		}
		set(c)
	}
	pressureCondition(corev1.NodeMemoryPressure, p.memory, "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory",
		"kubelet has insufficient memory available", "kubelet has sufficient memory available")
	pressureCondition(corev1.NodeDiskPressure, p.disk, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure",
		"kubelet has disk pressure", "kubelet has no disk pressure")
	pressureCondition(corev1.NodePIDPressure, p.pids, "KubeletHasInsufficientPID", "KubeletHasSufficientPID",
		"kubelet has insufficient PID available", "kubelet has sufficient PID available")
	if c, ok := staleNetwork(n.Status.Conditions, textOf(&k.staleErr)); ok {
		set(c)
	}
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	var wrong []string
	if !k.runtimeUp.Load() {
		msg := "container runtime status check may not have completed yet"
		if m := k.runtimeErr.Load(); m != nil {
			msg = *m
		}
		wrong = append(wrong, msg)
	}
	if why := k.listWrong(); why != "" {
		wrong = append(wrong, why)
	}
	if k.runtimeUp.Load() {
		if !k.network.Load() {
			wrong = append(wrong, k.networkMessage())
		}
		if why := k.networkWrong(); why != "" { // the cause, where the runtime only sees that something is missing
			wrong = append(wrong, "container runtime network not ready: "+why)
		}
	}
	if k.shuttingDown.Load() {
		wrong = append(wrong, "node is shutting down")
	}
	if len(wrong) > 0 {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "KubeletNotReady", strings.Join(wrong, ", ")
		if len(wrong) > 1 {
			ready.Message = "[" + ready.Message + "]"
		}
	}
	set(ready)
}

const (
	// heartbeatTimeout is how long an API server may take for what says that the node is
	// alive, upstream's: one that takes requests and never answers is not waited for.
	heartbeatTimeout = 10 * time.Second
	// leaseRetryMost is how long a try to renew the lease waits after some that failed, upstream's.
	leaseRetryMost = 7 * time.Second
	// leaveAfter is how many tries in a row a server may leave unanswered.
	leaveAfter = 2
)

// Reasons of the condition NetworkUnavailable that are this node's own: a cloud's controller
// has others.
const (
	networkNotUpdated = "NetworkNotUpdated"
	networkUpdated    = "NetworkUpdated"
)

// staleNetwork is what a Node is to say of a network that is not brought up to date, or is
// again; false: nothing. Pure.
func staleNetwork(have []corev1.NodeCondition, why string) (c corev1.NodeCondition, ok bool) {
	if why != "" {
		return corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: networkNotUpdated, Message: why}, true
	}
	ours := slices.ContainsFunc(have, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && (c.Reason == networkNotUpdated || c.Reason == networkUpdated)
	})
	return corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: networkUpdated, Message: "the node's network is up to date"}, ours
}

// keepLease renews the node's lease, which says that the kubelet is alive.
func (k *Kubelet) keepLease(ctx context.Context) {
	if !k.registered.wait(ctx) {
		return
	}
	var have *coordinationv1.Lease
	retry, unanswered := delay{first: time.Second, most: leaseRetryMost}, 0
	for wait := time.Duration(0); ; {
		if !sleep(ctx, wait) {
			return
		}
		asked, cancel := context.WithTimeout(ctx, k.heartbeat)
		got, err := k.renew(asked, have)
		late := asked.Err() != nil
		cancel()
		if err == nil {
			have, wait = got, time.Duration(k.cfg.Settings.NodeLeaseDurationSeconds)*time.Second/4
			retry.cur, unanswered = 0, 0
			continue
		}
		if ctx.Err() != nil {
			return
		}
		have, wait = nil, retry.next(time.Now())
		k.warnNew("renew lease", err)
		if late {
			unanswered++
		} else {
			unanswered = 0
		}
		if unanswered >= leaveAfter && k.cfg.LeaveServer != nil {
			unanswered = 0
			k.cfg.LeaveServer()
		}
	}
}

// warnNew logs what fails again and again, in the same words once in a while.
func (k *Kubelet) warnNew(what string, err error) {
	if k.news.IsNew(what, err.Error()) {
		slog.Warn(what, "err", err)
	}
}

func (k *Kubelet) renew(ctx context.Context, have *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	api := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	var err error
	if have == nil {
		have, err = api.Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	missing := apierrors.IsNotFound(err)
	if missing {
		have = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: k.cfg.NodeName, Namespace: corev1.NamespaceNodeLease}}
	}
	l := have.DeepCopy()
	now, secs := metav1.NowMicro(), k.cfg.Settings.NodeLeaseDurationSeconds
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &k.cfg.NodeName, &secs, &now
	if n := k.node.Load(); n != nil && len(l.OwnerReferences) == 0 {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}}
	}
	if missing {
		return api.Create(ctx, l, metav1.CreateOptions{})
	}
	return api.Update(ctx, l, metav1.UpdateOptions{})
}
