package dev

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func prefixes(list ...string) (all []netip.Prefix) {
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func TestChoose(t *testing.T) {
	for _, c := range []struct{ used, want []netip.Prefix }{
		{nil, prefixes("172.28.0.0/24", "10.42.0.0/16", "10.43.0.0/16")},
		// Another cluster's, a single host, all that Docker takes by default.
		{prefixes("172.28.0.0/24", "10.42.0.0/16", "10.43.0.0/16"), prefixes("172.28.1.0/24", "10.44.0.0/16", "10.45.0.0/16")},
		{prefixes("10.42.7.9/32"), prefixes("172.28.0.0/24", "10.44.0.0/16", "10.43.0.0/16")},
		{prefixes("172.16.0.0/12"), nil},
		{prefixes("172.28.0.0/16", "10.40.0.0/13"), prefixes("172.29.0.0/24", "10.48.0.0/16", "10.49.0.0/16")},
		{prefixes("10.0.0.0/8"), nil},
	} {
		f, err := choose(ranges4, c.used)
		if c.want == nil {
			if err == nil || !strings.Contains(err.Error(), "is in use on this host; knarr dev ls shows clusters to take down") {
				t.Errorf("%v: %v, %v", c.used, f, err)
			}
			continue
		}
		if err != nil || f.Hosts != c.want[0] || f.Pods != c.want[1] || f.Services != c.want[2] {
			t.Errorf("%v: %v, %v", c.used, f, err)
		}
	}
}

// No two candidates of a list overlap, nor a pod and a service range.
func TestCandidates(t *testing.T) {
	var used []netip.Prefix
	for _, list := range append(slices.Clone(ranges4), ranges6...) {
		for range min(list.count, 100) {
			p, err := list.free(used)
			if err != nil {
				t.Fatalf("after %d: %v", len(used), err)
			}
			used = append(used, p)
		}
	}
}

func TestState(t *testing.T) {
	s := state{family: family{Hosts: netip.MustParsePrefix("172.28.3.0/24"), Services: netip.MustParsePrefix("10.45.0.0/16")}}
	three := s
	three.Servers = 3
	for got, want := range map[string]string{
		s.address(0).String(): "172.28.3.1", s.address(2).String(): "172.28.3.3", s.dns().String(): "10.45.0.10", serverURL(s): "https://172.28.3.2:6443", serverURL(three): "https://172.28.3.1:6443", firstURL(three): "https://172.28.3.2:6443",
		strings.Join(three.serverAddresses(), " "): "172.28.3.2:6443 172.28.3.3:6443 172.28.3.4:6443",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if last := s.address(maxNodes); !s.Hosts.Contains(last) {
		t.Errorf("node %d would be at %s", maxNodes, last)
	}
}

// A cluster's families are chosen once, each apart from what is in use of it.
func TestFamilies(t *testing.T) {
	used := prefixes("10.42.0.0/16", "fd00:42::/56", "fd00:28::/64")
	for name, want := range map[string][3]string{
		"":   {"172.28.0.0/24", "10.44.0.0/16", "10.43.0.0/16"},
		ipv6: {"fd00:28:0:1::/64", "fd00:42:0:100::/56", "fd00:43::/112"},
		dual: {"172.28.0.0/24,fd00:28:0:1::/64", "10.44.0.0/16,fd00:42:0:100::/56", "10.43.0.0/16,fd00:43::/112"},
	} {
		var s state
		if err := s.chooseAll(name, used); err != nil {
			t.Fatal(err)
		}
		if got := [3]string{s.all(family.hosts), s.all(family.pods), s.all(family.services)}; got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
		if name != "" && s.ipFamily() != name {
			t.Errorf("%s is taken for %s", name, s.ipFamily())
		}
		c := &Cluster{dir: t.TempDir()}
		if err := c.store(s); err != nil {
			t.Fatal(err)
		}
		if again, _, err := c.load(); err != nil || again.all(family.pods) != s.all(family.pods) || again.addresses(2) != s.addresses(2) {
			t.Errorf("%s: kept %+v, %v", name, again, err)
		}
	}
}

// What is on the machine by a cluster's name fits and differs from the others'.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range []string{"dev", "b", strings.Repeat("x", 40)} {
		c, err := Open("/var/lib/knarr-dev", name)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range []string{c.bridge(), c.link(1), c.link(maxNodes)} {
			if len(link) > 15 || seen[link] {
				t.Errorf("link %s", link)
			}
			seen[link] = true
		}
	}
	for _, bad := range []string{"", "Dev", "a.b", "../x", "-x", strings.Repeat("x", 41)} {
		if _, err := Open("/d", bad); err == nil || !strings.Contains(err.Error(), "--name") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestNodeDirs(t *testing.T) {
	c, err := Open(t.TempDir(), "dev")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.NodeDirs(); err == nil || !strings.Contains(err.Error(), "there is no cluster dev") {
		t.Error(err)
	}
	if err := c.store(state{Nodes: 2}); err != nil {
		t.Fatal(err)
	}
	if all, err := c.NodeDirs(); err != nil || len(all) != 2 || all[1] != (NodeDir{"dev-2", filepath.Join(c.dir, "dev-2")}) {
		t.Errorf("%v, %v", all, err)
	}
	if one, err := c.NodeDirs("dev-2"); err != nil || len(one) != 1 || one[0].Node != "dev-2" {
		t.Errorf("%v, %v", one, err)
	}
	if _, err := c.NodeDirs("dev-3"); err == nil || !strings.Contains(err.Error(), "it has dev-1, dev-2") {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Nodes: 3, Servers: 1}, ""}, {Options{Servers: 1}, ""},
		{Options{Nodes: -1, Servers: 1}, "--nodes -1: one machine takes 1 to 100"},
		{Options{Nodes: 101, Servers: 1}, "--nodes 101"},
		{Options{Nodes: 2}, ""}, {Options{Servers: 3}, ""}, {Options{Nodes: 3, Servers: 3}, ""},
		{Options{Nodes: 2, Servers: 3}, "--servers 3: servers are nodes too; give at least --nodes 3"},
		{Options{Nodes: 20, Servers: 10}, "--servers 10: a cluster has 1 to 9"},
		{Options{Nodes: 2, Servers: -1}, "--servers -1: a cluster has 1 to 9"},
	} {
		err := c.o.Validate()
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}

func TestLastLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if got := lastLine(file, 0); got != "it said nothing" {
		t.Error(got)
	}
	if err := os.WriteFile(file, []byte("before\nbegin\nknarr: port taken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := lastLine(file, 7); got != "port taken" {
		t.Error(got)
	}
	if got := lastLine(file, 100); got != "it said nothing" {
		t.Error(got)
	}
}

func TestMountsOfOthers(t *testing.T) {
	const info = `22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw
23 22 0:5 / /dev rw - devtmpfs devtmpfs rw
40 22 0:40 / /run/knarr-dev-0dfcee rw - tmpfs tmpfs rw
41 22 0:41 / /run/knarr-abc/containerd/io.containerd.runtime.v2.task/k8s.io/x/rootfs rw - overlay overlay rw
42 22 0:42 / /data\040dir/kubelet/pods/1/volumes/kubernetes.io~projected/t rw - tmpfs tmpfs rw
43 22 0:43 / /run/lock rw - tmpfs tmpfs rw
`
	want := []string{"/run/knarr-dev-0dfcee", "/run/knarr-abc/containerd/io.containerd.runtime.v2.task/k8s.io/x/rootfs", "/data dir/kubelet/pods/1/volumes/kubernetes.io~projected/t"}
	if got := mountsOfOthers(info); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
