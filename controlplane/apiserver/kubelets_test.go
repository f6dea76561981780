package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/apiserver/registry"
)

func TestKubeletAddress(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "a"}, {Type: corev1.NodeExternalIP}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"}}}}
	for want, types := range map[string][]corev1.NodeAddressType{
		"10.0.0.1": defaultAddresses,
		"a":        {corev1.NodeExternalIP, corev1.NodeHostName, corev1.NodeInternalIP},
		"":         {corev1.NodeExternalDNS},
	} {
		if got := registry.NodeAddress(node, types...); got != want {
			t.Errorf("%v: %q, want %q", types, got, want)
		}
	}
}
