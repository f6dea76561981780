package criconfig

import (
	"strings"
	"testing"

	"knarr/node/kubelet/podtest"
)

// TestHostname: what a pod calls itself is one name that the kernel has room for.
func TestHostname(t *testing.T) {
	long := strings.Repeat("a", 62) + "-b"
	for _, c := range []struct {
		name, own, subdomain, override string
		host, domain, err              string
	}{
		{name: "p", host: "p"},
		{name: "p", own: "own", subdomain: "sub", host: "own", domain: "sub.ns.svc.cluster.local"},
		{name: long, host: strings.Repeat("a", 62)},
		{name: "p", override: "a.b.example", host: "a.b.example"},
		{name: "p", override: long, host: strings.Repeat("a", 62)},
		{name: "p", override: "A", err: `pod HostnameOverride "A" is not a valid DNS subdomain: `},
		{name: "p", own: "a.b", err: `pod Hostname "a.b" is not a valid DNS label: `},
		{name: "p", subdomain: "a.b", err: `pod Subdomain "a.b" is not a valid DNS label: `},
	} {
		p := podtest.Pod(c.name, "c")
		p.Spec.Hostname, p.Spec.Subdomain = c.own, c.subdomain
		if c.override != "" {
			p.Spec.HostnameOverride = &c.override
		}
		host, domain, err := hostname(p, "cluster.local")
		if host != c.host || domain != c.domain || (err != nil) != (c.err != "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("%+v: %q %q %v", c, host, domain, err)
		}
	}
}
