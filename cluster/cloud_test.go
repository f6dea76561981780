package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Nodes wait for a cloud controller manager only where the cluster says so, and
// only a server with a list of machines is one.
func TestCloudProvider(t *testing.T) {
	file := filepath.Join(t.TempDir(), "machines.yaml")
	if err := os.WriteFile(file, []byte("instances: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		wait string
		runs bool
	}{
		"by default":        {nil, "", false},
		"a vendor's":        {[]string{"--cloud-provider=external"}, "external", false},
		"a list of its own": {[]string{"--cloud-provider=external", "--cloud-config", file}, "external", true},
	} {
		o := serverOptions(t, c.args...)
		s := &Server{opts: *o, ca: &authority{}}
		if got := s.facts().CloudProvider; got != c.wait {
			t.Errorf("%s: nodes have the provider %q", name, got)
		}
		if got := slices.ContainsFunc(s.components(), func(c component) bool { return c.name == "cloud-controller-manager" }); got != c.runs {
			t.Errorf("%s: it runs: %t", name, got)
		}
		further := serverOptions(t)
		if err := further.inherit(o.settings()); err != nil || further.CloudProvider != c.wait || !further.disabled(cloudControllers) {
			t.Errorf("%s: a further server has %q: %v", name, further.CloudProvider, err)
		}
	}
	err := serverOptions(t, "--cloud-provider=external").inherit(serverOptions(t).settings())
	if want := "--cloud-provider: external: the cluster has "; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}
