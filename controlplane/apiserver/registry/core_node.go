package registry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
)

var nodes = &Kind[*corev1.Node]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Node"),
	Plural:           "nodes",
	RecheckName:      true,
	Short:            []string{"no"},
	Cluster:          true,
	Prefix:           "minions",

	Default: defaultNode,
	Prepare: func(_ context.Context, n, old *corev1.Node) {
		if old == nil {
			n.Spec.ConfigSource, n.Status.Config = nil, nil
			return
		}
		n.Status = old.Status
		if old.Spec.ConfigSource == nil {
			n.Spec.ConfigSource = nil
		}
	},
	Validate: validateNode,
	Warn:     func(_ context.Context, n, _ *corev1.Node) []string { return warnNode(n) },
	Fields: func(n *corev1.Node) fields.Set {
		return fields.Set{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)}
	},
	Columns: nodeColumns,
	Sub: []Subresource[*corev1.Node]{
		{Name: "proxy", Kind: corev1.SchemeGroupVersion.WithKind("NodeProxyOptions"),
			Verbs: []string{"create", "delete", "get", "patch", "update"}},
		statusOf(func(n, old *corev1.Node) {
			n.Spec = old.Spec
			if old.Status.Config == nil {
				n.Status.Config = nil
			}
		}, validateNodeUpdate),
	},
}

func defaultNode(n *corev1.Node) {
	// podCIDR is the first of podCIDRs; where they differ, the single one counts
	switch s := &n.Spec; {
	case s.PodCIDR != "" && (len(s.PodCIDRs) == 0 || s.PodCIDRs[0] != s.PodCIDR):
		s.PodCIDRs = []string{s.PodCIDR}
	case s.PodCIDR == "" && len(s.PodCIDRs) > 0:
		s.PodCIDR = s.PodCIDRs[0]
	}
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	roundUp(n.Status.Capacity)
	roundUp(n.Status.Allocatable)
}

func warnNode(n *corev1.Node) (warnings []string) {
	if n.Spec.ConfigSource != nil {
		warnings = append(warnings, "spec.configSource: the feature is removed")
	}
	if n.Spec.DoNotUseExternalID != "" {
		warnings = append(warnings, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	return warnings
}

var nodeColumns = []Column[*corev1.Node]{
	nameColumn[*corev1.Node](),
	column("Status", "string", "The status of the node", 0, func(n *corev1.Node) any { return nodeStatus(n) }),
	column("Roles", "string", "The roles of the node", 0,
		func(n *corev1.Node) any { return orElse(strings.Join(nodeRoles(n), ","), "<none>") }),
	ageColumn[*corev1.Node](),
	column("Version", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["kubeletVersion"], 0,
		func(n *corev1.Node) any { return n.Status.NodeInfo.KubeletVersion }),
	column("Internal-IP", "string", corev1.NodeStatus{}.SwaggerDoc()["addresses"], 1,
		func(n *corev1.Node) any { return cmp.Or(NodeAddress(n, corev1.NodeInternalIP), "<none>") }),
	column("External-IP", "string", corev1.NodeStatus{}.SwaggerDoc()["addresses"], 1,
		func(n *corev1.Node) any { return cmp.Or(NodeAddress(n, corev1.NodeExternalIP), "<none>") }),
	column("OS-Image", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["osImage"], 1,
		func(n *corev1.Node) any { return orElse(n.Status.NodeInfo.OSImage, "<unknown>") }),
	column("Kernel-Version", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["kernelVersion"], 1,
		func(n *corev1.Node) any {
			kernel := orElse(n.Status.NodeInfo.KernelVersion, "<unknown>")
			if arch := n.Status.NodeInfo.Architecture; arch != "" {
				return fmt.Sprintf("%s (%s)", kernel, arch)
			}
			return kernel
		}),
	column("Container-Runtime", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["containerRuntimeVersion"], 1,
		func(n *corev1.Node) any { return orElse(n.Status.NodeInfo.ContainerRuntimeVersion, "<unknown>") }),
}

func nodeStatus(n *corev1.Node) string {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		status = "NotReady"
		if c.Status == corev1.ConditionTrue {
			status = "Ready"
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

func nodeRoles(n *corev1.Node) (roles []string) {
	for k, v := range n.Labels {
		if role, ok := strings.CutPrefix(k, "node-role.kubernetes.io/"); ok && role != "" {
			roles = append(roles, role)
		} else if k == "kubernetes.io/role" && v != "" {
			roles = append(roles, v)
		}
	}
	sort.Strings(roles)
	return slices.Compact(roles)
}

// NodeAddress is the node's first address of the first type it has, "" for none.
func NodeAddress(n *corev1.Node, types ...corev1.NodeAddressType) string {
	for _, want := range types {
		for _, a := range n.Status.Addresses {
			if a.Type == want && a.Address != "" {
				return a.Address
			}
		}
	}
	return ""
}
