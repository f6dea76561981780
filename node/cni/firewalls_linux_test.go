package cni

import (
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"knarr/internal/need"
	"knarr/node/cni/network"
)

func TestCommentOf(t *testing.T) {
	for noted, want := range map[string]string{
		"":                        "",
		"\x00\x03ab\x00":          "ab",
		"\x07\x01x\x00\x03ab\x00": "ab",
		"\x00\x09ab":              "",
		"\x00":                    "",
		"\x01\x00\x00\x01\x00":    "",
	} {
		if got := commentOf([]byte(noted)); got != want {
			t.Errorf("%q: %q, want %q", noted, got, want)
		}
	}
}

// TestAdmit: pods are let through the firewalls that would drop what they send, each once,
// and no other chain is touched; afterwards nothing is left.
func TestAdmit(t *testing.T) {
	need.Root(t)
	inNamespace(t, testAdmit)
}

func testAdmit(t *testing.T) {
	conn, err := nftables.New()
	if err != nil {
		t.Error(err)
		return
	}
	drop, accept := nftables.ChainPolicyDrop, nftables.ChainPolicyAccept
	chain := func(table *nftables.Table, name string, hook *nftables.ChainHook, policy nftables.ChainPolicy) *nftables.Chain {
		return conn.AddChain(&nftables.Chain{Table: table, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter, Policy: &policy})
	}
	docker4 := conn.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4})
	docker6 := conn.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv6})
	firewalld := conn.AddTable(&nftables.Table{Name: "firewalld", Family: nftables.TableFamilyINet})
	lenient := conn.AddTable(&nftables.Table{Name: "lenient", Family: nftables.TableFamilyINet})
	want := map[*nftables.Chain]int{
		chain(docker4, "FORWARD", nftables.ChainHookForward, drop):            2,
		chain(docker4, "INPUT", nftables.ChainHookInput, drop):                2,
		chain(docker6, "FORWARD", nftables.ChainHookForward, drop):            2,
		chain(firewalld, "filter_FORWARD", nftables.ChainHookForward, accept): 4,
		chain(lenient, "forward", nftables.ChainHookForward, accept):          0,
		chain(docker4, "OUTPUT", nftables.ChainHookOutput, drop):              0,
		chain(docker6, "POSTROUTING", nftables.ChainHookPostrouting, accept):  0,
		chain(docker6, "INPUT", nftables.ChainHookInput, accept):              0,
	}
	for ch := range want { // somebody's own rule, which stays
		conn.AddRule(&nftables.Rule{Table: ch.Table, Chain: ch, Exprs: []expr.Any{&expr.Counter{}}})
	}
	if err := conn.Flush(); err != nil {
		need.Skip(t, "needs a kernel with nftables: ", err)
	}
	c := Config{PodCIDRs: []string{"10.42.1.0/24", "fd00:42::/64"}, ClusterCIDRs: []string{"10.42.0.0/16", "fd00:42::/56"}, StateDir: t.TempDir(), DNSPort: 10053}
	other := c
	other.Bridge, other.Table = "knarr0-other", "knarr0-other"
	check := func(when string, times int) {
		t.Helper()
		for ch, n := range want {
			rules, err := rulesOf(ch)
			if err != nil || len(rules) != 1+n*times {
				t.Errorf("%s: chain %s of %s has %d rules, %v, want %d", when, ch.Name, ch.Table.Name, len(rules), err, 1+n*times)
			} else if rules[n*times].comment != "" {
				t.Errorf("%s: chain %s of %s has knarr's rules behind another's", when, ch.Name, ch.Table.Name)
			}
		}
	}
	for range 2 { // again changes nothing
		if err := Admit(c); err != nil {
			t.Error(err)
		}
	}
	check("admitted", 1)
	if err := Admit(other); err != nil {
		t.Error(err)
	}
	check("with another cluster", 2)
	if out, err := exec.Command("iptables", "-S").CombinedOutput(); err == nil {
		for _, rule := range []string{"-A FORWARD -s 10.42.0.0/16", "-A FORWARD -d 10.42.0.0/16", "-A INPUT -d 10.42.1.1/32 -i knarr0 -p udp"} {
			if !strings.Contains(string(out), rule) {
				t.Errorf("iptables lists no %s:\n%s", rule, out)
			}
		}
		if strings.Contains(string(out), "incompatible") {
			t.Errorf("iptables cannot read its table any more:\n%s", out)
		}
	}
	if err := errors.Join(withdraw("knarr0-cni"), withdraw("knarr0-cni")); err != nil {
		t.Error(err)
	}
	check("one withdrawn", 1)
	if err := withdraw(other.Table); err != nil {
		t.Error(err)
	}
	check("both withdrawn", 0)
}

// TestAdmission: a chain of one family gets the rules of that one.
func TestAdmission(t *testing.T) {
	n := &network.Conf{Bridge: "knarr0", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.1.0/24")}, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}}
	for _, c := range []struct {
		family nftables.TableFamily
		hook   *nftables.ChainHook
		dns    uint16
		want   int
	}{
		{nftables.TableFamilyIPv4, nftables.ChainHookForward, 0, 2}, {nftables.TableFamilyINet, nftables.ChainHookForward, 0, 2},
		{nftables.TableFamilyIPv6, nftables.ChainHookForward, 0, 0}, {nftables.TableFamilyIPv4, nftables.ChainHookInput, 0, 0},
		{nftables.TableFamilyINet, nftables.ChainHookInput, 10053, 2},
	} {
		if got := admission(n, c.dns, &nftables.Chain{Table: &nftables.Table{Family: c.family}, Hooknum: c.hook}); len(got) != c.want {
			t.Errorf("%v: %d rules", c, len(got))
		}
	}
}
