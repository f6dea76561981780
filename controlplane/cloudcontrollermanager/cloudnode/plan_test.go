package cloudnode

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudprovider "k8s.io/cloud-provider"

	"knarr/controlplane/cloudcontrollermanager/instances"
)

func address(kind corev1.NodeAddressType, a string) corev1.NodeAddress {
	return corev1.NodeAddress{Type: kind, Address: a}
}

func TestAddresses(t *testing.T) {
	in, out, host := corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName
	cloud := []corev1.NodeAddress{address(in, "10.0.0.1"), address(in, "10.0.0.2"), address(in, "fd00::1"), address(out, "192.0.2.1"), address(corev1.NodeInternalDNS, "n.test")}
	for name, c := range map[string]struct {
		provided string
		cloud    []corev1.NodeAddress
		want     string
	}{
		"the provider says none":   {"", nil, "[]"},
		"with the node's own name": {"", cloud[:1], "[{InternalIP 10.0.0.1} {Hostname n}]"},
		"with a name of its own":   {"", []corev1.NodeAddress{address(host, "x"), cloud[0]}, "[{Hostname x} {InternalIP 10.0.0.1}]"},
		"one is preferred":         {"10.0.0.2", cloud, "[{InternalIP 10.0.0.2} {ExternalIP 192.0.2.1} {InternalDNS n.test} {Hostname n}]"},
		"one of each family":       {"fd00:0::1,10.0.0.1", cloud, "[{InternalIP fd00::1} {InternalIP 10.0.0.1} {ExternalIP 192.0.2.1} {InternalDNS n.test} {Hostname n}]"},
		"one that is not there":    {"10.0.0.3", cloud, "failed to get node address from cloud provider that matches ip: 10.0.0.3"},
		"one that is none":         {"here", cloud, `failed to parse node IP "here": could not parse "here"`},
	} {
		node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{address(host, "n"), address(in, "10.9.9.9")}}}
		if c.provided != "" {
			node.Annotations = map[string]string{"alpha.kubernetes.io/provided-node-ip": c.provided}
		}
		list, err := addresses(node, c.cloud)
		got := fmt.Sprint(list)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if !instances.SameAddresses(cloud, []corev1.NodeAddress{cloud[4], cloud[2], cloud[1], cloud[0], cloud[3]}) || instances.SameAddresses(cloud, cloud[1:]) || instances.SameAddresses(cloud[:1], cloud[1:2]) {
		t.Error("same is wrong")
	}
}

func TestInitialised(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a.test/x": "mine", "a.test/y": "same"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "node.cloudprovider.kubernetes.io/uninitialized", Effect: corev1.TaintEffectNoExecute}, {Key: "other"}}},
	}
	m := &cloudprovider.InstanceMetadata{ProviderID: "p://1", Zone: "z", AdditionalLabels: map[string]string{
		"a.test/x": "theirs", "a.test/y": "same", "a.test/z": "new", "k8s.io/x": "", "sub.kubernetes.io/x": "", "notkubernetes.io/x": "free"}}
	next, discarded := initialised(node, m)
	if got := fmt.Sprint(next.Labels); got != "map[a.test/x:mine a.test/y:same a.test/z:new failure-domain.beta.kubernetes.io/zone:z notkubernetes.io/x:free topology.kubernetes.io/zone:z]" {
		t.Error(got)
	}
	if got := fmt.Sprint(discarded); got != "[a.test/x k8s.io/x sub.kubernetes.io/x]" {
		t.Error(got)
	}
	if next.Spec.ProviderID != "p://1" || len(next.Spec.Taints) != 1 || len(node.Spec.Taints) != 2 || len(node.Labels) != 2 {
		t.Errorf("%+v of %+v", next.Spec, node.Spec)
	}
	node.Spec.ProviderID = "p://0" // which never changes
	if next, _ := initialised(node, m); next.Spec.ProviderID != "p://0" {
		t.Error(next.Spec.ProviderID)
	}
}

func TestStableLabels(t *testing.T) {
	for _, c := range []struct{ have, want string }{
		{"", ""}, {"only", "only"}, {"other", "other"},
	} {
		labels := map[string]string{"topology.kubernetes.io/region": "r"}
		if c.have != "" {
			labels["beta.kubernetes.io/instance-type"] = c.have
		}
		if c.have == "other" {
			labels["node.kubernetes.io/instance-type"] = "first"
		}
		want := map[string]string{}
		if c.want != "" {
			want["node.kubernetes.io/instance-type"] = c.want
		}
		if got := stableLabels(labels); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v: %v", labels, got)
		}
	}
}
