package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

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
	k.logConditions(want)
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
		if status(have, n.t) != "" { // a new Node has them all
			slog.Info("the node's condition has changed", "condition", string(n.t)+"="+string(is), "reason", reason)
		}
		k.events.Event(k.nodeRef(), corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", k.cfg.NodeName, reason))
	}
}

// badConditions are what the kubelet's own conditions are where the node is not well: others'
// may mean anything.
var badConditions = map[corev1.NodeConditionType]corev1.ConditionStatus{
	corev1.NodeReady: corev1.ConditionFalse, corev1.NodeMemoryPressure: corev1.ConditionTrue, corev1.NodeDiskPressure: corev1.ConditionTrue,
	corev1.NodePIDPressure: corev1.ConditionTrue, corev1.NodeNetworkUnavailable: corev1.ConditionTrue,
}

// settled is how old a kubelet is of which more is logged than that it starts.
const settled = 10 * time.Second

// logConditions logs why the node is not well, again once in a while: its events say only that
// it is not, and a condition is gone with the next.
func (k *Kubelet) logConditions(n *corev1.Node) {
	if time.Since(k.began) < settled {
		return
	}
	for _, c := range n.Status.Conditions {
		bad, ours := badConditions[c.Type]
		if ours && c.Status == bad && k.news.IsNew("condition "+string(c.Type), c.Message) {
			slog.Warn("the node is not well", "condition", string(c.Type)+"="+string(c.Status), "reason", c.Reason, "message", c.Message)
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
