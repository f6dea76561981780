package network

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

func prefixes(list ...string) (ranges []netip.Prefix) {
	for _, s := range list {
		ranges = append(ranges, netip.MustParsePrefix(s))
	}
	return ranges
}

func TestCandidates(t *testing.T) {
	taken := func(addrs ...string) map[netip.Addr]string {
		m := map[netip.Addr]string{}
		for _, a := range addrs {
			m[netip.MustParseAddr(a)] = "x"
		}
		return m
	}
	for _, tt := range []struct {
		name, in, last string
		taken          map[netip.Addr]string
		want           string
	}{
		{"first is after the gateway", "10.0.0.0/24", "", nil, "10.0.0.2"},
		{"goes on after the last", "10.0.0.0/24", "10.0.0.7", nil, "10.0.0.8"},
		{"skips taken", "10.0.0.0/24", "10.0.0.7", taken("10.0.0.8", "10.0.0.9"), "10.0.0.10"},
		{"goes round before the broadcast", "10.0.0.0/24", "10.0.0.254", nil, "10.0.0.2"},
		{"smallest range", "10.0.0.0/30", "", nil, "10.0.0.2"},
		{"smallest range, full", "10.0.0.0/30", "10.0.0.2", taken("10.0.0.2"), "none"},
		{"last of another range", "10.0.1.0/24", "10.0.0.9", nil, "10.0.1.2"},
		{"v6 has no broadcast", "fd00::/126", "fd00::2", nil, "fd00::3"},
		{"v6 goes round", "fd00::/126", "fd00::3", nil, "fd00::2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var last netip.Addr
			if tt.last != "" {
				last = netip.MustParseAddr(tt.last)
			}
			got := "none"
			for a := range candidates(netip.MustParsePrefix(tt.in), last) {
				if tt.taken[a] == "" {
					got = a.String()
					break
				}
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestAllocate(t *testing.T) {
	dir, ranges := t.TempDir(), prefixes("10.0.0.0/29", "fd00::/64")
	seen := map[netip.Addr]bool{}
	for _, owner := range []string{"a", "b", "c", "d", "e"} {
		got, err := allocate(dir, ranges, owner, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 2 || seen[got[0]] || seen[got[1]] {
			t.Errorf("%s gets %v, which is not two new addresses", owner, got)
		}
		seen[got[0]], seen[got[1]] = true, true
	}
	if _, err := allocate(dir, ranges, "f", nil); err == nil {
		t.Error("a sixth finds an address among five")
	}
	// The refused one must leave nothing in the second range.
	if taken, _ := owners(rangeDir(dir, ranges[1])); len(taken) != 5 {
		t.Errorf("%d addresses taken in %s, want 5", len(taken), ranges[1])
	}
	had := []netip.Addr{netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.4")}
	again, err := allocate(dir, ranges, "c", had)
	if err != nil || again[0].String() != "10.0.0.4" {
		t.Errorf("c again: %v, %v", again, err)
	}
	if err := release(dir, ranges, "b", had); err != nil { // one of them is c's
		t.Fatal(err)
	}
	if got, err := allocate(dir, ranges, "g", nil); err != nil || got[0].String() != "10.0.0.3" {
		t.Errorf("after a release: %v, %v; want 10.0.0.3", got, err)
	}
}

func TestAllocateIgnoresDamage(t *testing.T) {
	dir, ranges := t.TempDir(), prefixes("10.0.0.0/24")
	if err := os.MkdirAll(rangeDir(dir, ranges[0]), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rangeDir(dir, ranges[0]), lastName), []byte("10.0.0."), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := allocate(dir, ranges, "a", nil); err != nil || got[0].String() != "10.0.0.2" {
		t.Errorf("%v, %v; want 10.0.0.2", got, err)
	}
}

func TestElements(t *testing.T) {
	a := &Attachment{
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")},
		Ports: []PortMapping{
			{HostPort: 80, ContainerPort: 8080, Protocol: "TCP"},
			{HostPort: 53, ContainerPort: 53, Protocol: "udp", HostIP: "192.0.2.1"},
			{HostPort: 54, ContainerPort: 54, Protocol: "udp", HostIP: "::"},
			{ContainerPort: 1},
		},
	}
	count := map[string]int{}
	for _, e := range elements(a) {
		count[e.set]++
	}
	want := map[string]int{portsAny4: 1, portsAny6: 2, portsOn4: 1, hairpinOf4: 1, hairpinOf6: 1}
	for set, n := range want {
		if count[set] != n {
			t.Errorf("%s has %d elements, want %d", set, count[set], n)
		}
	}
	if len(count) != len(want) {
		t.Errorf("elements in %v, want %v", count, want)
	}
	if got := elements(a)[0]; got.key != "\x06\x00\x00\x00\x00\x50\x00\x00" || got.val != "\x0a\x00\x00\x02\x1f\x90\x00\x00" {
		t.Errorf("first element %q → %q", got.key, got.val)
	}
	if n := len(allElements([]*Attachment{a, a})); n != len(elements(a)) {
		t.Errorf("%d elements for the same attachment twice, want %d", n, len(elements(a)))
	}
}

func TestValidate(t *testing.T) {
	good := func() *Conf {
		return &Conf{Bridge: "br0", Table: "t", StateDir: "/s", PodCIDRs: prefixes("10.0.0.0/24")}
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Conf){
		"no bridge":         func(c *Conf) { c.Bridge = "" },
		"long bridge":       func(c *Conf) { c.Bridge = "0123456789abcdef" },
		"relative state":    func(c *Conf) { c.StateDir = "s" },
		"no range":          func(c *Conf) { c.PodCIDRs = nil },
		"invalid range":     func(c *Conf) { c.PodCIDRs = []netip.Prefix{{}} },
		"tiny range":        func(c *Conf) { c.PodCIDRs = prefixes("10.0.0.0/31") },
		"unmasked range":    func(c *Conf) { c.PodCIDRs = prefixes("10.0.0.1/24") },
		"two of one family": func(c *Conf) { c.PodCIDRs = prefixes("10.0.0.0/24", "10.0.1.0/24") },
		"dccp": func(c *Conf) {
			c.RuntimeConfig.PortMappings = []PortMapping{{HostPort: 1, ContainerPort: 1, Protocol: "dccp"}}
		},
		"bad host address": func(c *Conf) {
			c.RuntimeConfig.PortMappings = []PortMapping{{HostPort: 1, ContainerPort: 1, Protocol: "tcp", HostIP: "x"}}
		},
	} {
		c := good()
		spoil(c)
		if c.Validate() == nil {
			t.Errorf("%s: is accepted", name)
		}
	}
}
