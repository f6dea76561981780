package cloudnode

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/api"
	netutils "k8s.io/utils/net"
)

// tainted reports whether the node waits to be initialised.
func tainted(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, isCloudTaint)
}

func isCloudTaint(t corev1.Taint) bool { return t.Key == api.TaintExternalCloudProvider }

// pairs are the labels of zone, region and instance type.
var pairs = [...]struct{ beta, stable string }{
	{corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone},
	{corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion},
	{corev1.LabelInstanceType, corev1.LabelInstanceTypeStable},
}

// reserved are labels that a provider may not choose.
var reserved = regexp.MustCompile(`(^|\.)(kubernetes|k8s)\.io/`)

// initialised is the node with what its instance says of it, and without the taint.
// Pure; discarded are labels of the provider's that the node does not take.
func initialised(node *corev1.Node, m *cloudprovider.InstanceMetadata) (next *corev1.Node, discarded []string) {
	next = node.DeepCopy()
	next.Spec.ProviderID = cmp.Or(node.Spec.ProviderID, m.ProviderID)
	next.Spec.Taints = slices.DeleteFunc(next.Spec.Taints, isCloudTaint)
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	for i, value := range [...]string{m.Zone, m.Region, m.InstanceType} {
		if value != "" {
			next.Labels[pairs[i].beta], next.Labels[pairs[i].stable] = value, value
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m.AdditionalLabels)) {
		value := m.AdditionalLabels[key]
		have, taken := next.Labels[key]
		switch {
		case reserved.MatchString(key), taken && have != value:
			discarded = append(discarded, key)
		default:
			next.Labels[key] = value
		}
	}
	return next, discarded
}

// stableLabels are the labels that must follow those of their beta names, which a
// node had first.
func stableLabels(have map[string]string) map[string]string {
	want := map[string]string{}
	for _, l := range pairs {
		if v, ok := have[l.beta]; ok {
			if is, ok := have[l.stable]; !ok || is != v {
				want[l.stable] = v
			}
		}
	}
	return want
}

// addresses are those the node should have of what its instance has; nil if the
// provider says none, and the node keeps its own. Pure.
func addresses(node *corev1.Node, cloud []corev1.NodeAddress) ([]corev1.NodeAddress, error) {
	if len(cloud) == 0 {
		return nil, nil
	}
	named := func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeHostName }
	if !slices.ContainsFunc(cloud, named) {
		cloud = slices.Clone(cloud)
		for _, a := range node.Status.Addresses {
			if named(a) {
				cloud = append(cloud, a)
			}
		}
	}
	provided, ok := node.Annotations[api.AnnotationAlphaProvidedIPAddr]
	if !ok {
		return cloud, nil
	}
	return preferred(provided, cloud)
}

// preferred are the addresses of the kubelet's --node-ip, which must be among the
// instance's, in place of others of their types.
func preferred(provided string, cloud []corev1.NodeAddress) (out []corev1.NodeAddress, err error) {
	types := map[corev1.NodeAddressType]bool{}
	for text := range strings.SplitSeq(provided, ",") {
		ip := netutils.ParseIPSloppy(strings.TrimSpace(text))
		if ip == nil {
			return nil, fmt.Errorf("failed to parse node IP %q: could not parse %q", provided, text)
		}
		of := slices.DeleteFunc(slices.Clone(cloud), func(a corev1.NodeAddress) bool { return !sameIP(a.Address, ip) })
		if len(of) == 0 {
			return nil, fmt.Errorf("failed to get node address from cloud provider that matches ip: %v", ip)
		}
		for _, a := range of {
			types[a.Type] = true
		}
		out = append(out, of...)
	}
	for _, a := range cloud {
		if !types[a.Type] {
			out = append(out, a)
		}
	}
	return out, nil
}

func sameIP(text string, ip net.IP) bool {
	parsed := netutils.ParseIPSloppy(text)
	return parsed != nil && parsed.Equal(ip)
}
