package criconfig

import (
	"net"
	"slices"
	"strings"
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
	d, notes, err := dnsConfig(n, p)
	if err != nil {
		t.Fatal(err)
	}
	if len(notes) != 0 {
		t.Errorf("notes %v", notes)
	}
	if !slices.Equal(d.Servers, []string{"10.43.0.10", "9.9.9.9"}) || !slices.Equal(d.Searches, []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local"}) ||
		!slices.Equal(d.Options, []string{"ndots:2", "edns0"}) {
		t.Errorf("%+v", d)
	}
	p.Spec.HostNetwork, p.Spec.DNSConfig = true, nil
	if d, _, _ := dnsConfig(n, p); len(d.Servers) != 0 {
		t.Errorf("a pod on the host network got %v", d.Servers)
	}
}

// TestDNSLimits: what resolvers have no room for is left out, and told of.
func TestDNSLimits(t *testing.T) {
	n := Node{ClusterDomain: "cluster.local", ResolvConf: func() (string, error) { return "nameserver 1.1.1.1", nil }}
	p := podtest.Pod("p", "c")
	p.Spec.DNSPolicy = corev1.DNSClusterFirst
	p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"2.2.2.2", "3.3.3.3", "4.4.4.4"}, Searches: []string{"a", strings.Repeat("b", 254), "c"}}
	d, notes, err := dnsConfig(n, p)
	if err != nil || !slices.Equal(d.Servers, []string{"1.1.1.1", "2.2.2.2", "3.3.3.3"}) || !slices.Equal(d.Searches, []string{"a", "c"}) {
		t.Errorf("%+v, %v", d, err)
	}
	missing := `kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. Falling back to "Default" policy.`
	want := []Note{
		{"MissingClusterDNS", `pod: "p_ns(uid-p)". ` + missing, missing},
		{"DNSConfigForming", "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1.1.1.1 2.2.2.2 3.3.3.3", ""},
		{"DNSConfigForming", "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: a c", ""},
	}
	if !slices.Equal(notes, want) {
		t.Errorf("notes %q, want %q", notes, want)
	}
	for _, c := range []struct{ count, length, fit int }{{33, 1, 32}, {32, 100, 20}, {32, 2, 32}} {
		var all []string
		for i := range c.count {
			all = append(all, strings.Repeat(string(rune('a'+i)), c.length))
		}
		if got := fitSearches(all); len(got) != c.fit {
			t.Errorf("%d of %d fit %d, want %d", c.count, c.length, len(got), c.fit)
		}
	}
}

func TestCheckResolvConf(t *testing.T) {
	for text, want := range map[string]string{
		"search" + strings.Repeat(" a", 29):                         "",
		"search" + strings.Repeat(" a", 30):                         "Resolv.conf file '/r' contains search line consisting of more than 29 domains!",
		"search " + strings.Repeat("a", 254):                        `Resolv.conf file "/r" contains a search path which length is more than allowed 253 chars!`,
		"search" + strings.Repeat(" "+strings.Repeat("a", 200), 11): "Resolv.conf file '/r' contains search line which length is more than allowed 2048 chars!",
	} {
		if got := CheckResolvConf("/r", text, "cluster.local"); got != want {
			t.Errorf("%.20s: %s, want %s", text, got, want)
		}
	}
}

func TestParseResolvConf(t *testing.T) {
	d := parseResolvConf("# c\nnameserver 1.1.1.1\nsearch a.b. c # x\noptions ndots:1\n")
	if !slices.Equal(d.Servers, []string{"1.1.1.1"}) || !slices.Equal(d.Searches, []string{"a.b", "c"}) || !slices.Equal(d.Options, []string{"ndots:1"}) {
		t.Errorf("%+v", d)
	}
}

// TestNoResolver: pods that are to have none of the node's name servers ask the node itself,
// where nobody answers; an empty configuration would be filled in by the runtime.
func TestNoResolver(t *testing.T) {
	n := Node{NoResolver: true, HostIPs: []string{"10.0.0.1", "fd00::1"}, ResolvConf: func() (string, error) { return "", nil }}
	p := podtest.Pod("p", "c")
	for _, policy := range []corev1.DNSPolicy{corev1.DNSDefault, corev1.DNSClusterFirst} { // there is no cluster DNS
		p.Spec.DNSPolicy = policy
		d, _, err := dnsConfig(n, p)
		if err != nil || !slices.Equal(d.Servers, []string{"127.0.0.1", "::1"}) || !slices.Equal(d.Searches, []string{"."}) {
			t.Errorf("%s: %+v, %v", policy, d, err)
		}
	}
	n.HostIPs = nil
	if d, _, err := dnsConfig(n, p); err != nil || !slices.Equal(d.Servers, []string{"127.0.0.1"}) {
		t.Errorf("without an address: %+v, %v", d, err)
	}
	p.Spec.DNSPolicy = corev1.DNSNone
	if d, _, err := dnsConfig(n, p); err != nil || len(d.Servers)+len(d.Searches) != 0 {
		t.Errorf("of a pod that says its own: %+v, %v", d, err)
	}
}
