package criconfig

import (
	"net"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
)

func TestPodDNS(t *testing.T) {
	n := Node{ClusterDNS: []net.IP{net.IPv4(10, 43, 0, 10)}, ClusterDomain: "cluster.local", ResolvConf: func() (string, error) { return "", nil }}
	p := podtest.Pod("p", "c")
	p.Spec.DNSPolicy = corev1.DNSClusterFirst
	two := "2"
	p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"9.9.9.9"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0"}}}
	d, err := dnsConfig(n, p)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(d.Servers, []string{"10.43.0.10", "9.9.9.9"}) || !slices.Equal(d.Searches, []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local"}) ||
		!slices.Equal(d.Options, []string{"ndots:2", "edns0"}) {
		t.Errorf("%+v", d)
	}
	p.Spec.HostNetwork, p.Spec.DNSConfig = true, nil
	if d, _ := dnsConfig(n, p); len(d.Servers) != 0 {
		t.Errorf("a pod on the host network got %v", d.Servers)
	}
}

func TestParseResolvConf(t *testing.T) {
	d := parseResolvConf("# c\nnameserver 1.1.1.1\nsearch a.b. c # x\noptions ndots:1\n")
	if !slices.Equal(d.Servers, []string{"1.1.1.1"}) || !slices.Equal(d.Searches, []string{"a.b", "c"}) || !slices.Equal(d.Options, []string{"ndots:1"}) {
		t.Errorf("%+v", d)
	}
}
