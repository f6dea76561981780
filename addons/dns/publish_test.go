package dns

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/apitest"
)

// Every node's server is behind the Service, which was made before there were
// several; traffic stays on its node.
func TestPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		client := api.Client(t)
		no := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		services, nodes := client.CoreV1().Services("kube-system"), client.CoreV1().Nodes()
		_, err := services.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kube-dns"}, Spec: corev1.ServiceSpec{
			ClusterIP: "10.43.0.10", Ports: []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}}}}, metav1.CreateOptions{})
		no(err)
		_, err = nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDR: "10.42.0.0/24", PodCIDRs: []string{"10.42.0.0/24"}}}, metav1.CreateOptions{})
		no(err)

		a, err := NewPublisher(api.Config(), []netip.Addr{netip.MustParseAddr("10.43.0.10")}, 10053, AtPods)
		no(err)
		running, end := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- a.Run(running) }()
		synctest.Wait()
		svc, err := services.Get(ctx, "kube-dns", metav1.GetOptions{})
		no(err)
		if p := svc.Spec.InternalTrafficPolicy; p == nil || *p != corev1.ServiceInternalTrafficPolicyLocal {
			t.Errorf("traffic policy %v", p)
		}
		if ports := svc.Spec.Ports; len(ports) != 2 || ports[1].Name != "metrics" || ports[1].Port != 9153 {
			t.Errorf("ports %v", ports)
		}

		b, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{})
		no(err)
		synctest.Wait()
		slices := client.DiscoveryV1().EndpointSlices("kube-system")
		list, err := slices.List(ctx, metav1.ListOptions{})
		no(err)
		if len(list.Items) != 1 {
			t.Errorf("a node without a range has an EndpointSlice: %v", list.Items)
		}
		b.Spec.PodCIDR, b.Spec.PodCIDRs = "fd00:42:1::/64", []string{"fd00:42:1::/64"}
		b, err = nodes.Update(ctx, b, metav1.UpdateOptions{})
		no(err)
		synctest.Wait()
		for name, want := range map[string]struct {
			family  discoveryv1.AddressType
			address string
		}{"a": {discoveryv1.AddressTypeIPv4, "10.42.0.1"}, "b": {discoveryv1.AddressTypeIPv6, "fd00:42:1::1"}} {
			s, err := slices.Get(ctx, "kube-dns-"+name, metav1.GetOptions{})
			no(err)
			e := s.Endpoints[0]
			if s.AddressType != want.family || e.Addresses[0] != want.address || *e.NodeName != name || *s.Ports[0].Port != 10053 || len(s.Ports) != 3 || *s.Ports[2].Port != 9153 {
				t.Errorf("%s: %v", name, s)
			}
			if o := s.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].Name != name || o[0].UID == "" {
				t.Errorf("%s: owners %v", name, o)
			}
		}

		// Made anew under its name, with another identity and the same range.
		no(nodes.Delete(ctx, "b", metav1.DeleteOptions{}))
		again, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: b.Spec}, metav1.CreateOptions{})
		no(err)
		synctest.Wait()
		s, err := slices.Get(ctx, "kube-dns-b", metav1.GetOptions{})
		no(err)
		if s.OwnerReferences[0].UID != again.UID {
			t.Error("the slice belongs to the node that is gone")
		}
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestPublishFamilies: the Service has an address of each family, and each node's
// server is behind both, under names that no other node's slices have.
func TestPublishFamilies(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.42.0.0/24", "fd00:42::/64", "here"}}}
	for _, a := range []string{"fd00:28::2", "172.28.0.2", "172.28.0.9", "here"} {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"})
	for _, c := range []struct {
		at   Location
		want [][2]string
	}{{AtPods, [][2]string{{"kube-dns-a", "10.42.0.1"}, {"kube-dns.ipv6.a", "fd00:42::1"}}}, {AtNodes, [][2]string{{"kube-dns-a", "fd00:28::2"}, {"kube-dns.ipv4.a", "172.28.0.2"}}}} {
		at, err := c.at(node)
		if err == nil || len(at) != 2 {
			t.Fatalf("%v, %v: what cannot be read is an error beside the others", at, err)
		}
		for i, got := range endpointSlices(node, at, 10053) {
			if got.Name != c.want[i][0] || got.Endpoints[0].Addresses[0] != c.want[i][1] {
				t.Errorf("%v, want %v", got, c.want[i])
			}
		}
	}
	p := &Publisher{addresses: []netip.Addr{netip.MustParseAddr("fd00:43::a"), netip.MustParseAddr("10.43.0.10")}}
	ips, families, policy := p.families()
	if len(ips) != 2 || ips[0] != "fd00:43::a" || families[0] != corev1.IPv6Protocol || families[1] != corev1.IPv4Protocol || policy != corev1.IPFamilyPolicyRequireDualStack {
		t.Errorf("%v %v %v", ips, families, policy)
	}
}
