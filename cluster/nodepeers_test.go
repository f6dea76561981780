package cluster

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Nodes that say they have an image are asked first; this one and those that are not ready
// are not asked.
func TestPeersFor(t *testing.T) {
	const image = "docker.io/library/nginx:1"
	node := func(i int, ready corev1.ConditionStatus, images ...string) (n corev1.Node) {
		n.Name = fmt.Sprint("n", i)
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.Name}, {Type: corev1.NodeInternalIP, Address: fmt.Sprint("10.0.0.", i)}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		n.Status.Images = []corev1.ContainerImage{{Names: images}}
		return n
	}
	nodes := []corev1.Node{
		node(1, corev1.ConditionTrue, image), node(2, corev1.ConditionTrue), node(3, corev1.ConditionUnknown, image),
		node(4, corev1.ConditionTrue, "docker.io/library/nginx@sha256:0", image), node(5, corev1.ConditionTrue),
	}
	nodes = append(nodes, node(4, corev1.ConditionTrue, image)) // with another's address
	nodes[4].Status.DaemonEndpoints.KubeletEndpoint.Port = 0
	if got, want := peersFor(nodes, "n1", image), []string{"10.0.0.4:10250", "10.0.0.2:10250"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	nodes = nil
	for i := range 100 {
		nodes = append(nodes, node(i, corev1.ConditionTrue))
	}
	nodes = append(nodes, node(200, corev1.ConditionTrue, image))
	if got := peersFor(nodes, "n1", image); len(got) != maxPeers || got[0] != "10.0.0.200:10250" {
		t.Errorf("%v", got)
	}
}
