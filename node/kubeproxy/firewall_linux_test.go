package kubeproxy

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Who may not connect gets no answer: outside the ranges of a load balancer, at
// another address of the node than its Node's, at an address of the Services'
// range that none has.
func TestWhoMayConnect(t *testing.T) {
	inNamespace(t)
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil { // this namespace's
		t.Fatal(err)
	}
	serve(t, "10.1.0.1:8080")
	serve(t, "[fd01::1]:8080")
	client := attach(t, "out", "198.51.100.1/24", "198.51.100.9/24")
	k, err := newNFTables("knarr-test", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	svc := service("web", "10.43.0.7", corev1.ServicePort{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP})
	svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, "fd43::7")
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.8"}, {IP: "fd02::8"}}
	endpoints := eps(slice("web", 8080, "10.1.0.1"), six("web", "fd01::1"))
	node := planNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "n1"}, {Type: corev1.NodeInternalIP, Address: "10.1.0.1"},
			{Type: corev1.NodeInternalIP, Address: "10.1.0.2"}, {Type: corev1.NodeInternalIP, Address: "fd01::1"}}},
	}, []*networkingv1.ServiceCIDR{{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.43.0.0/16", "fd43::/112"}}}})
	const answers, refuses, drops = "answers", "refuses", "drops"
	want := func(from func(func()), addr, what string) {
		t.Helper()
		got := answers
		from(func() {
			_, err := ask(addr)
			late := net.Error(nil)
			switch {
			case errors.Is(err, syscall.ECONNREFUSED):
				got = refuses
			case errors.As(err, &late) && late.Timeout():
				got = drops
			case err != nil:
				got = err.Error()
			}
		})
		if got != what {
			t.Errorf("%s %s, and should be what %s", addr, got, what)
		}
	}
	here := func(f func()) { f() }
	rules := func(ranges ...string) map[cache.ObjectName]Rules {
		svc.Spec.LoadBalancerSourceRanges = ranges
		return map[cache.ObjectName]Rules{cache.NewObjectName("ns", "web"): plan(svc, endpoints, host{name: "n1"}), nodeKey: node}
	}
	write(t, k, rules(), true)
	want(client, "192.0.2.8:80", answers)
	want(here, "[fd02::8]:80", answers)
	want(client, "10.1.0.1:30080", answers)
	want(here, "[fd01::1]:30080", answers)
	want(here, "10.1.0.2:30080", refuses) // not the first of its family
	want(here, "10.43.0.7:81", refuses)
	want(here, "10.43.0.99:80", drops)
	want(client, "10.43.0.99:80", drops)
	want(here, "[fd43::99]:80", drops)

	write(t, k, rules("203.0.113.0/24", "fd03::/64"), false)
	want(client, "192.0.2.8:80", drops)
	want(here, "[fd02::8]:80", drops)
	want(client, "10.1.0.1:30080", answers) // the ranges are the load balancer's
	want(here, "10.43.0.7:80", answers)

	write(t, k, rules("203.0.113.0/24", "198.51.100.0/25", "198.51.100.0/24", "fd01::1/128"), false)
	want(client, "192.0.2.8:80", answers)
	want(here, "[fd02::8]:80", answers)

	// The node gets another address, and no Service changes.
	write(t, k, map[cache.ObjectName]Rules{nodeKey: {NodeAddresses: map[netip.Addr]bool{netip.MustParseAddr("10.1.0.2"): true}}}, false)
	want(here, "10.1.0.2:30080", answers)
	want(client, "10.1.0.1:30080", refuses)
}
