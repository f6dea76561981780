package cni

import (
	"net/netip"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"knarr/internal/need"
	"knarr/node/cni/network"
)

func TestReadLegacy(t *testing.T) {
	for _, c := range []struct {
		listing string
		drops   bool
		ours    [][]string
	}{
		{"", false, nil},
		{"-P FORWARD ACCEPT\n", false, nil},
		{"-P FORWARD DROP\n-A FORWARD -s 10.0.0.0/8 -j ACCEPT\n", true, nil},
		{"-P INPUT DROP\n-P FORWARD\n-A FORWARD -m comment --comment", false, nil},
		{"-P FORWARD DROP\n-A FORWARD -s 10.0.0.0/8 -m comment --comment t -j ACCEPT\n-A FORWARD -m comment --comment t2 -j ACCEPT\n", true,
			[][]string{{"FORWARD", "-s", "10.0.0.0/8", "-m", "comment", "--comment", "t", "-j", "ACCEPT"}}},
	} {
		if drops, ours := readLegacy(c.listing, "FORWARD", "t"); drops != c.drops || !reflect.DeepEqual(ours, c.ours) {
			t.Errorf("%q: %t %q", c.listing, drops, ours)
		}
	}
}

func TestLegacyAdmission(t *testing.T) {
	n := &network.Conf{Bridge: "knarr0", Table: "t", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.1.0/24")}, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}}
	for _, c := range []struct {
		chain string
		v6    bool
		dns   uint16
		want  int
	}{{"FORWARD", false, 0, 2}, {"FORWARD", true, 0, 0}, {"INPUT", false, 0, 0}, {"INPUT", false, 10053, 2}, {"INPUT", true, 10053, 0}} {
		if got := legacyAdmission(n, c.dns, c.chain, c.v6); len(got) != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// Pods pass the chains of iptables-legacy that drop, and those alone, and a machine that
// has no such table does not get one.
func TestAdmitLegacy(t *testing.T) {
	need.Root(t)
	if _, err := exec.LookPath("iptables-legacy"); err != nil {
		need.Skip(t, "needs iptables-legacy: apt-get install iptables")
	}
	inNamespace(t, testAdmitLegacy)
}

func testAdmitLegacy(t *testing.T) {
	c := Config{PodCIDRs: []string{"10.42.1.0/24", "fd00:42::/64"}, ClusterCIDRs: []string{"10.42.0.0/16", "fd00:42::/56"}, StateDir: t.TempDir(), DNSPort: 10053}
	admit := func() {
		t.Helper()
		if err := Admit(c); err != nil {
			t.Error(err)
		}
	}
	legacy := func(program string, args ...string) string {
		t.Helper()
		out, err := exec.Command(program, args...).CombinedOutput()
		if err != nil {
			t.Errorf("%s %s: %v: %s", program, args, err, out)
		}
		return string(out)
	}
	admit()
	if got := legacyFilters(); len(got) > 0 {
		t.Fatalf("tables that nobody made: %v", got)
	}
	if out, err := exec.Command("iptables-legacy", "-P", "FORWARD", "DROP").CombinedOutput(); err != nil {
		t.Skipf("this kernel has no tables of iptables-legacy: %s", out)
	}
	legacy("iptables-legacy", "-A", "FORWARD", "-s", "192.0.2.0/24", "-j", "ACCEPT")
	legacy("ip6tables-legacy", "-P", "INPUT", "DROP")
	before := legacy("iptables-legacy", "-S") + legacy("ip6tables-legacy", "-S")
	for range 2 { // again changes nothing
		admit()
	}
	const comment = " -m comment --comment knarr0-cni -j ACCEPT\n"
	want := "-A FORWARD -d 10.42.0.0/16" + comment + "-A FORWARD -s 10.42.0.0/16" + comment + "-A FORWARD -s 192.0.2.0/24 -j ACCEPT\n"
	after := legacy("iptables-legacy", "-S") + legacy("ip6tables-legacy", "-S")
	if !strings.Contains(after, want) || strings.Count(after, comment) != 4 || strings.Count(after, "-A INPUT -d fd00:42::1/128 -i knarr0 ") != 2 {
		t.Errorf("admitted:\n%s", after)
	}
	legacy("iptables-legacy", "-D", "FORWARD", "1") // somebody takes one of them
	admit()
	if again := legacy("iptables-legacy", "-S") + legacy("ip6tables-legacy", "-S"); again != after {
		t.Errorf("repaired:\n%s", again)
	}
	for range 2 {
		if err := withdrawLegacy("knarr0-cni"); err != nil {
			t.Error(err)
		}
	}
	if now := legacy("iptables-legacy", "-S") + legacy("ip6tables-legacy", "-S"); now != before {
		t.Errorf("withdrawn:\n%s", now)
	}
}
