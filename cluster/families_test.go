package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestRanges: what is not said follows from what is.
func TestRanges(t *testing.T) {
	for name, c := range map[string]struct{ args, pods, services, dns, advertise, err string }{
		"nothing":            {"--node-ip 10.9.0.1", "10.42.0.0/16", "10.43.0.0/16", "10.43.0.10", "10.9.0.1", ""},
		"a node of IPv6":     {"--node-ip fd09::1", "fd00:42::/56", "fd00:43::/112", "fd00:43::a", "fd09::1", ""},
		"a node of both":     {"--node-ip fd09::1,10.9.0.1", "fd00:42::/56,10.42.0.0/16", "fd00:43::/112,10.43.0.0/16", "fd00:43::a,10.43.0.10", "fd09::1", ""},
		"pods":               {"--node-ip 10.9.0.1,fd09::1 --cluster-cidr 10.1.2.0/16,fd00:1::/56", "10.1.0.0/16,fd00:1::/56", "10.43.0.0/16,fd00:43::/112", "10.43.0.10,fd00:43::a", "10.9.0.1", ""},
		"Services":           {"--node-ip 10.9.0.1,fd09::1 --service-cidr fd00:2::/112,10.2.0.0/16", "fd00:42::/56,10.42.0.0/16", "fd00:2::/112,10.2.0.0/16", "fd00:2::a,10.2.0.10", "fd09::1", ""},
		"DNS of one":         {"--node-ip 10.9.0.1,fd09::1 --cluster-dns 10.43.0.53", "10.42.0.0/16,fd00:42::/56", "10.43.0.0/16,fd00:43::/112", "10.43.0.53", "10.9.0.1", ""},
		"one address":        {"--node-ip 10.9.0.1 --cluster-cidr 10.1.0.0/16,fd00:1::/56", "10.1.0.0/16,fd00:1::/56", "10.43.0.0/16,fd00:43::/112", "10.43.0.10,fd00:43::a", "10.9.0.1", ""},
		"two of a family":    {"--node-ip 10.9.0.1 --cluster-cidr 10.1.0.0/16,10.5.0.0/16", "", "", "", "", "--cluster-cidr: \"10.1.0.0/16,10.5.0.0/16\" has more than one range of a family"},
		"two addresses":      {"--node-ip 10.9.0.1,10.9.0.2", "", "", "", "", "--node-ip: \"10.9.0.1,10.9.0.2\" has more than one address of a family"},
		"other families":     {"--node-ip 10.9.0.1 --cluster-cidr 10.1.0.0/16 --service-cidr fd00:2::/112", "", "", "", "", "--service-cidr: fd00:2::/112 is not of the families of --cluster-cidr 10.1.0.0/16"},
		"overlap":            {"--node-ip fd09::1 --cluster-cidr fd00::/48 --service-cidr fd00::/112", "", "", "", "", "--service-cidr: fd00::/112 overlaps --cluster-cidr fd00::/48"},
		"DNS elsewhere":      {"--node-ip fd09::1 --cluster-dns fd00:5::a", "", "", "", "", "--cluster-dns: fd00:5::a is not within --service-cidr fd00:43::/112"},
		"parts":              {"--node-ip fd09::1 --node-cidr-mask-size-ipv6 80", "", "", "", "", "--node-cidr-mask-size-ipv6: 80: parts of fd00:42::/56 have 56 to 72"},
		"parts of the whole": {"--node-ip 10.9.0.1 --cluster-cidr 10.1.0.0/25", "10.1.0.0/25", "10.43.0.0/16", "10.43.0.10", "10.9.0.1", ""},
	} {
		var o Options
		f := pflag.NewFlagSet("server", pflag.ContinueOnError)
		o.Flags(f)
		if err := f.Parse(append([]string{"--data-dir", t.TempDir(), "--node-name", "n"}, strings.Fields(c.args)...)); err != nil {
			t.Fatal(err)
		}
		err := o.Validate()
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %s", name, err, c.err)
			}
			continue
		}
		if err != nil || o.foreign != nil {
			t.Errorf("%s: %v, %v", name, err, o.foreign)
			continue
		}
		if o.clusterCIDRs.String() != c.pods || o.serviceCIDRs.String() != c.services || o.clusterDNS.String() != c.dns || o.advertise.String() != c.advertise {
			t.Errorf("%s: pods %s, services %s, DNS %s, advertised %s", name, o.clusterCIDRs, o.serviceCIDRs, o.clusterDNS, o.advertise)
		}
	}
}

// TestOfCluster: a node has its addresses in the order of the cluster's families.
func TestOfCluster(t *testing.T) {
	four, six := netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:42::/56")
	for _, c := range []struct {
		have  string
		pods  ranges
		given bool
		want  string
	}{
		{"10.9.0.1,fd09::1", ranges{four}, false, "10.9.0.1"},
		{"10.9.0.1,fd09::1", ranges{four}, true, "10.9.0.1,fd09::1"},
		{"10.9.0.1,fd09::1", ranges{six, four}, true, "fd09::1,10.9.0.1"},
		{"10.9.0.1,fd09::1", ranges{six}, false, "fd09::1"},
		{"10.9.0.1", ranges{four, six}, false, "10.9.0.1"},
		{"10.9.0.1", ranges{six, four}, false, "the cluster's first range of pods, fd00:42::/56, is of IPv6, and this node has 10.9.0.1"},
		{"fd09::1", ranges{four}, true, "the cluster's first range of pods, 10.42.0.0/16, is of IPv4, and this node has fd09::1"},
	} {
		var have addresses
		if err := have.UnmarshalText([]byte(c.have)); err != nil {
			t.Fatal(err)
		}
		got, err := have.ofCluster(c.pods, c.given)
		if err == nil && got.String() != c.want || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s in %s: %s, %v, want %s", c.have, c.pods, got, err, c.want)
		}
	}
}

// TestFactsOfOneFamily: what an agent of an earlier version was told is read.
func TestFactsOfOneFamily(t *testing.T) {
	var f facts
	if err := json.Unmarshal([]byte(`{"clusterCIDR":"10.42.0.0/16","serviceCIDR":"10.43.0.0/16","clusterDNS":"10.43.0.10"}`), &f); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(f.ClusterCIDRs, f.ServiceCIDRs, f.ClusterDNS) != "10.42.0.0/16 10.43.0.0/16 10.43.0.10" {
		t.Errorf("%+v", f)
	}
	f.ClusterCIDRs = append(f.ClusterCIDRs, netip.MustParsePrefix("fd00:42::/56"))
	b, err := json.Marshal(f)
	var again facts
	if err == nil {
		err = json.Unmarshal(b, &again)
	}
	if err != nil || !slices.Equal(again.ClusterCIDRs, f.ClusterCIDRs) {
		t.Errorf("%v, %v", again, err)
	}
}
