package criconfig

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestHosts(t *testing.T) {
	got := hostsText([]string{"10.0.0.9"}, "h", "sub.ns.svc.x") + aliasText([]corev1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}})
	if !strings.HasSuffix(got, "10.0.0.9\th.sub.ns.svc.x\th\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n") {
		t.Errorf("%q", got)
	}
}
