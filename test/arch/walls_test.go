package arch

import (
	"slices"
	"strings"
	"testing"
)

// components are the folders that know nothing of each other. A folder that is
// deeper wins: node/cni/plugin belongs to node/cni.
var components = []string{
	"controlplane/etcd", "controlplane/kine", "controlplane/apiserver", "controlplane/scheduler",
	"controlplane/controllermanager", "controlplane/cloudcontrollermanager",
	"node/kubelet", "node/containerruntime", "node/cni", "node/kubeproxy", "node/networkpolicy",
	"addons/dns", "addons/gateway", "addons/dashboard", "addons/metrics", "addons/localstorage", "addons/loadbalancer",
	"kubectl",
}

// component is the one that a folder belongs to, or "".
func component(name string) string {
	for _, c := range components {
		if within(name, c) {
			return c
		}
	}
	return ""
}

func within(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }

// A wall is what may be imported by some only.
type wall struct {
	what    func(path string) bool
	allowed []string // folders
	why     string
}

func below(paths ...string) func(string) bool {
	return func(path string) bool {
		return slices.ContainsFunc(paths, func(p string) bool { return within(path, p) })
	}
}

var walls = []wall{
	{below("go.etcd.io/etcd/server/v3", "go.etcd.io/raft/v3", "go.etcd.io/bbolt"), []string{"controlplane/etcd"},
		"the store's server is one component's affair"},
	{below("go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/api/v3"), []string{"controlplane/apiserver/storage", "controlplane/etcd", "controlplane/kine"},
		"only the API server talks to etcd, through its storage"},
	{below("k8s.io/kubernetes"), nil, "the project is its own implementation"},
	{below("k8s.io/apiserver/pkg/server", "k8s.io/apiserver/pkg/registry", "k8s.io/apiserver/pkg/storage", "k8s.io/apiserver/pkg/endpoints"), nil,
		"the request path is written here"},
	{below("k8s.io/kubectl", "k8s.io/cli-runtime"), []string{"kubectl"}, "linked into the server it costs 14 MB"},
	{below("github.com/containerd/containerd"), []string{"node/containerruntime"}, "the kubelet speaks the CRI to any runtime"},
	{below("k8s.io/client-go/util/workqueue"), []string{"internal/controller", "controlplane/controllermanager", "controlplane/scheduler", "node/kubelet"},
		"queues belong to the reconcile engine"},
	{below(module + "internal/apitest"), nil, "the API server of tests is for tests"},
	{below(module + "internal/sctptest"), nil, "sockets of SCTP are for tests"},
	{below("testing"), []string{"internal/apitest", "controlplane/apiserver/storage/storagetest", "node/kubelet/fakecri", "node/kubelet/podtest", "node/kubelet/deviceplugin/plugintest", "node/kubelet/shutdown/logindtest", "node/kubelet/cgroup/systemdtest", "internal/bustest", "test"}, "tests stay out of the program"},
}

// TestWalls: components share libraries and internal/, and nothing else.
func TestWalls(t *testing.T) {
	for _, p := range tree(t) {
		from := p.name()
		for _, to := range p.Imports {
			if why := forbidden(from, to); why != "" {
				t.Errorf("%s imports %s: %s", from, to, why)
			}
		}
	}
}

// together are the folders that see several components.
var together = []string{"cluster", "cmd", "test"}

// forbidden says why a folder may not import a package, or nothing.
func forbidden(from, path string) string {
	for _, w := range walls {
		if w.what(path) && !slices.ContainsFunc(w.allowed, func(a string) bool { return within(from, a) }) {
			return w.why
		}
	}
	to, ours := strings.CutPrefix(path, module)
	if !ours || slices.ContainsFunc(together, func(a string) bool { return within(from, a) }) {
		return ""
	}
	mine, theirs := component(from), component(to)
	switch {
	case slices.ContainsFunc(together, func(a string) bool { return within(to, a) }):
		return "wiring is above the components"
	case mine == "" && !within(from, "internal"):
		return "it belongs to no component; add it to the table"
	case theirs == "" || mine == theirs:
		return ""
	case within(from, "internal/apitest") && theirs == "controlplane/apiserver":
		return ""
	}
	return "components know each other through the Kubernetes API only"
}

// TestForbidden holds the wall's own judgement to examples.
func TestForbidden(t *testing.T) {
	for _, c := range []struct {
		from, to string
		bad      bool
	}{
		{"node/kubelet", "knarr/controlplane/apiserver/registry", true},
		{"node/kubelet/csi", "knarr/node/kubelet/volume", false},
		{"node/kubelet", "knarr/node/cni", true},
		{"cluster", "knarr/node/kubelet", false},
		{"addons/dns", "knarr/cluster", true},
		{"internal/run", "knarr/node/kubelet", true},
		{"internal/run", "knarr/internal/memnet", false},
		{"controlplane/etcd", "go.etcd.io/etcd/server/v3/etcdserver", false},
		{"controlplane/apiserver/storage", "go.etcd.io/etcd/server/v3/etcdserver", true},
		{"controlplane/apiserver/storage", "go.etcd.io/etcd/client/v3", false},
		{"controlplane/apiserver/watchcache", "go.etcd.io/etcd/client/v3", true},
		{"cluster", "k8s.io/apiserver/pkg/server/options", true},
		{"cluster", "k8s.io/apiserver/pkg/authentication/user", false},
		{"controlplane/scheduler", "knarr/internal/apitest", true},
	} {
		if why := forbidden(c.from, c.to); (why != "") != c.bad {
			t.Errorf("%s importing %s: %q", c.from, c.to, why)
		}
	}
}

// TestLinked: what is never ours is not linked by way of a library either. Time zones
// are, since a host need not have them.
func TestLinked(t *testing.T) {
	pkgs, err := list("./cmd/knarr")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range pkgs[0].Deps {
		if below("k8s.io/kubernetes", "k8s.io/apiserver/pkg/server", "k8s.io/apiserver/pkg/registry", "k8s.io/apiserver/pkg/storage", "k8s.io/kubectl", "k8s.io/cli-runtime")(d) {
			t.Errorf("bin/knarr links %s", d)
		}
	}
	if !slices.Contains(pkgs[0].Deps, "time/tzdata") {
		t.Error("bin/knarr knows no time zones of its own")
	}
}
