package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"knarr/internal/need"
	"knarr/internal/programs"
)

func TestConflist(t *testing.T) {
	c := Config{PodCIDRs: []string{"10.42.3.0/24"}, ClusterCIDRs: []string{"10.42.0.0/16"}, StateDir: "/s"}.withDefaults()
	n, err := c.conf()
	if err != nil {
		t.Fatal(err)
	}
	b, err := conflist(n)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if got.CNIVersion != "1.0.0" || got.Name != "knarr-knarr0" || len(got.Plugins) != 1 {
		t.Fatalf("conflist %s", b)
	}
	for key, want := range map[string]string{
		"type": `"knarr-cni"`, "bridge": `"knarr0"`, "table": `"knarr0-cni"`, "podCIDRs": `["10.42.3.0/24"]`,
		"clusterCIDRs": `["10.42.0.0/16"]`, "capabilities": `{"bandwidth":true,"portMappings":true}`, "stateDir": `"/s"`,
	} {
		if v, _ := json.Marshal(got.Plugins[0][key]); string(v) != want {
			t.Errorf("%s is %s, want %s", key, v, want)
		}
	}
	// libcni adds these itself.
	for _, key := range []string{"runtimeConfig", "prevResult"} {
		if _, ok := got.Plugins[0][key]; ok {
			t.Errorf("%s is in the configuration", key)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	_, err := Config{PodCIDRs: []string{"10.0.0.0"}, ClusterCIDRs: []string{"x"}}.withDefaults().conf()
	if err == nil || !strings.Contains(err.Error(), "pod range") || !strings.Contains(err.Error(), "cluster range") {
		t.Errorf("error %v names not both ranges", err)
	}
}

// Of the results that libcni keeps, those of one cluster go and those of others
// stay, though the name of the one begins that of the other.
func TestRemoveResults(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cni", "results")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"knarr-knarr0-0123abcd-eth0", "knarr-knarr0-a1b2c3-4567cdef-eth0", "bench-89ab-eth0"} {
		network := name[:strings.LastIndex(name[:strings.LastIndex(name, "-")], "-")]
		b, err := json.Marshal(map[string]string{"kind": "cniCacheV1", "networkName": network})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ network, left string }{
		{"knarr-knarr0", "[bench-89ab-eth0 knarr-knarr0-a1b2c3-4567cdef-eth0]"},
		{"knarr-knarr0-a1b2c3", "[bench-89ab-eth0]"},
		{"bench", "[]"},
	} {
		if err := removeResults(dir, c.network); err != nil {
			t.Fatal(err)
		}
		left := []string{}
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if got := fmt.Sprint(left); got != c.left {
			t.Errorf("without %s there is %s, want %s", c.network, got, c.left)
		}
	}
	if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty directory is left: %v", err)
	}
}

func TestInstallRemove(t *testing.T) {
	need.Root(t)
	if _, err := programs.Read(programs.CNI); err != nil {
		need.Skip(t, "needs the embedded programs: make build")
	}
	inNamespace(t, testInstallRemove)
}

func testInstallRemove(t *testing.T) {
	if err := os.WriteFile(forward4, []byte("0"), 0o644); err != nil {
		t.Error(err)
		return
	}
	// A link by which a router has told the host a route, and one by which none has.
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "told"
	cable := netlink.NewVeth(attrs)
	cable.PeerName = "untold"
	err := netlink.LinkAdd(cable)
	if err == nil {
		routed, terr := netlink.LinkByName("told")
		silentLink, uerr := netlink.LinkByName("untold")
		if err = errors.Join(terr, uerr); err == nil {
			err = errors.Join(netlink.LinkSetUp(routed), netlink.LinkSetUp(silentLink), netlink.RouteAdd(&netlink.Route{
				LinkIndex: routed.Attrs().Index, Dst: ipnet(netip.MustParsePrefix("2001:db8::/64")), Protocol: unix.RTPROT_RA}))
		}
	}
	heard, silent := acceptRAOf("told"), acceptRAOf("untold")
	if err := errors.Join(err, os.WriteFile(forward6, []byte("0"), 0o644), os.WriteFile(heard, []byte("1"), 0o644), os.WriteFile(silent, []byte("1"), 0o644)); err != nil {
		t.Error(err)
		return
	}
	value := func(path string) string {
		b, _ := os.ReadFile(path)
		return strings.TrimSpace(string(b))
	}
	dir := t.TempDir()
	c := Config{Dir: dir + "/net.d", BinDir: dir + "/bin", PodCIDRs: []string{"10.42.3.0/24", "fd00:42::/64"}, StateDir: dir + "/state"}
	for range 2 { // again is no error
		if err := Install(c); err != nil {
			t.Error(err)
			return
		}
	}
	if value(forward4) != "1" || value(forward6) != "1" {
		t.Error("forwarding is off")
	}
	if value(heard) != "2" || value(silent) != "1" {
		t.Errorf("accept_ra of the host's own link is %s, of another %s, want 2 and 1", value(heard), value(silent))
	}
	link, err := netlink.LinkByName("knarr0")
	if err != nil {
		t.Error(err)
		return
	}
	if addrs, err := netlink.AddrList(link, netlink.FAMILY_V4); err != nil || len(addrs) != 1 || addrs[0].IPNet.String() != "10.42.3.1/24" {
		t.Errorf("bridge has %v, %v", addrs, err)
	}
	// Another network needs forwarding beyond the first one's end.
	other := Config{Dir: dir + "/other.d", BinDir: dir + "/bin", Bridge: "knarr0-other", Table: "knarr0-other", PodCIDRs: []string{"10.43.3.0/24"}, StateDir: dir + "/other"}
	if err := Install(other); err != nil {
		t.Error(err)
		return
	}
	if err := Remove(c); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(forward4); strings.TrimSpace(string(b)) != "1" {
		t.Error("forwarding was switched off under another network")
	}
	if err := Remove(other); err != nil {
		t.Error(err)
	}
	if record, err := forwardingPath(); err != nil {
		t.Error(err)
	} else if _, err := os.Stat(record); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left", record)
	}
	for range 2 {
		if err := Remove(c); err != nil {
			t.Error(err)
		}
	}
	if _, err := netlink.LinkByName("knarr0"); !errors.As(err, &netlink.LinkNotFoundError{}) {
		t.Errorf("bridge after Remove: %v", err)
	}
	if value(forward4) != "0" || value(forward6) != "0" || value(heard) != "1" {
		t.Error("forwarding is still on")
	}
	for _, path := range []string{c.StateDir, filepath.Join(c.Dir, confName)} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left", path)
		}
	}
}
