package smoke

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// machine is what of this machine a cluster might leave changed.
type machine map[string]bool

// look takes stock of links, routes and their rules, nftables tables and the elements of a
// cluster's, mounts, cgroups, network namespaces and the kernel's network settings.
func look(t *testing.T) machine {
	t.Helper()
	m := machine{}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		m["link "+l.Attrs().Name] = true
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, tb := range tables {
		m[fmt.Sprintf("table %d %s", tb.Family, tb.Name)] = true
		if !strings.HasPrefix(tb.Name, "knarr") {
			continue
		}
		sets, err := c.GetSets(tb)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sets {
			if s.Anonymous {
				continue
			}
			elements, err := c.GetSetElements(s)
			if err != nil {
				continue // it went while we looked
			}
			name, count := generation.ReplaceAllString(s.Name, ""), fmt.Sprint(len(elements))
			if name == "classes" {
				count = "some" // a bounded number of classes is kept for the next Service
			}
			key := fmt.Sprintf("elements %d %s %s: %s", tb.Family, tb.Name, name, count)
			for m[key] { // a generation that was left behind
				key += " again"
			}
			m[key] = true
		}
	}
	for line := range strings.Lines(read(t, "/proc/self/mountinfo")) {
		m["mount "+strings.Fields(line)[4]] = true
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, "knarr") {
			m["cgroup "+path] = true
		}
		return nil
	})
	spaces, _ := os.ReadDir("/run/netns")
	for _, s := range spaces {
		m["netns "+s.Name()] = true
	}
	m.addRoutes(t)
	m.addSettings()
	return m
}

// addRoutes takes those of all tables but what the kernel makes for a link by itself, once
// there is somebody at its other end.
func (m machine) addRoutes(t *testing.T) {
	t.Helper()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE) // table 0: all
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			if r.Dst != nil && (r.Dst.IP.IsLinkLocalUnicast() || r.Dst.IP.IsMulticast()) {
				continue
			}
			m[fmt.Sprintf("route %v via %v, link %d, table %d, protocol %d", r.Dst, r.Gw, r.LinkIndex, r.Table, r.Protocol)] = true
		}
		rules, err := netlink.RuleList(family)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			m[fmt.Sprintf("rule %d of family %d: %v", r.Priority, family, r)] = true
		}
	}
}

// addSettings takes the kernel's settings of addresses and of connections, but for what
// the kernel changes by itself.
func (m machine) addSettings() {
	for _, dir := range []string{"ipv4", "ipv6", "netfilter"} {
		_ = filepath.WalkDir("/proc/sys/net/"+dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_count") || strings.HasSuffix(path, "_key") || d.Name() == "mtu" {
				return nil
			}
			if b, err := os.ReadFile(path); err == nil { // some are only written, or are secrets
				m["setting "+path+" "+strings.TrimSpace(string(b))] = true
			}
			return nil
		})
	}
}

// generation is the part of a set's name that says after which start or whole rewrite
// it was made.
var generation = regexp.MustCompile(`\.\d+$|^[0-9a-f]{9}-`)

// differences are what b has and a has not, and the reverse.
func (a machine) differences(b machine) (d []string) {
	for x := range b {
		if !a[x] {
			d = append(d, "new: "+x)
		}
	}
	for x := range a {
		if !b[x] {
			d = append(d, "gone: "+x)
		}
	}
	return d
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// processes are the ids of those whose command line names dir.
func processes(dir string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && strings.Contains(string(b), dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// resident is a process's resident memory in MB, anonymous and in all.
func resident(pid int) (anon, all float64) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "RssAnon: %f", &kb); n == 1 {
			anon = kb / 1024
		}
		if n, _ := fmt.Sscanf(line, "VmRSS: %f", &kb); n == 1 {
			all = kb / 1024
		}
	}
	return anon, all
}
