package kubeproxy

import (
	"net"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// echo answers UDP with its own address.
func echo(t *testing.T, addr string) {
	c, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 100)
		for {
			_, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if _, err := c.WriteTo([]byte(addr), from); err != nil {
				return
			}
		}
	}()
}

// A UDP client keeps its port, and so its flow: it follows the endpoints of a
// cluster address and of a node port, also when they change while no proxy runs,
// and stays at one that ends as long as that serves.
func TestUDPFlowsFollowEndpoints(t *testing.T) {
	inNamespace(t)
	if _, err := os.Stat("/proc/sys/net/netfilter"); err != nil {
		t.Skip("no connection tracking: ", err)
	}
	echo(t, "10.1.0.1:8080")
	echo(t, "10.1.0.2:8080")
	port := corev1.ServicePort{Port: 53, NodePort: 30053, Protocol: corev1.ProtocolUDP}
	svc := service("web", "10.43.0.7", port)
	rules := func(addrs ...string) Rules {
		s := slice("web", 8080, addrs...)
		s.Ports[0].Protocol = new(corev1.ProtocolUDP)
		return plan(svc, eps(s), host{name: "n1"})
	}
	var k *kernel
	start := func() {
		var err error
		if k, err = newNFTables("knarr-test", nil, anyAddress...); err != nil {
			t.Fatal(err)
		}
	}
	clients := map[string]net.Conn{}
	for _, addr := range []string{"10.43.0.7:53", "10.1.0.1:30053"} {
		c, err := net.Dial("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients[addr] = c
	}
	want := func(when, answer string) {
		t.Helper()
		for addr, c := range clients {
			got := ""
			for range 5 { // what comes late of a try before is not this one's
				b := make([]byte, 100)
				if err := c.SetDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Write([]byte("?")); err != nil {
					continue
				}
				n, err := c.Read(b)
				if err != nil {
					continue
				}
				if got = string(b[:n]); got == answer {
					break
				}
			}
			if got != answer {
				t.Errorf("%s: %s answers as %q, want %q", when, addr, got, answer)
			}
		}
	}
	start()
	write(t, k, one("web", rules("10.1.0.1")), true)
	want("at first", "10.1.0.1:8080")
	write(t, k, one("web", rules("10.1.0.2")), false)
	want("after another has come in its place", "10.1.0.2:8080")
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	start()
	write(t, k, one("web", rules("10.1.0.1")), true)
	want("after a change while no proxy ran", "10.1.0.1:8080")

	s := slice("web", 8080, "10.1.0.1", "10.1.0.2")
	s.Ports[0].Protocol = new(corev1.ProtocolUDP)
	s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	write(t, k, one("web", plan(svc, eps(s), host{name: "n1"})), false)
	want("while its endpoint ends and serves", "10.1.0.1:8080")
	write(t, k, one("web", rules("10.1.0.2")), false)
	want("when that has ended", "10.1.0.2:8080")
	if got := k.tables[0].pools; len(got) != 1 {
		t.Errorf("pools %v", got)
	}
	k.Close()
}
