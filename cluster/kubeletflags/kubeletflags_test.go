package kubeletflags

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet"
	"knarr/node/kubelet/configuration"
)

func TestParse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file, []byte("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: 20\nport: 1\nclusterDomain: x.test\nauthorization: {mode: AlwaysAllow}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := Parse([]string{"--max-pods=30", "eviction-hard=memory.available<1Gi,nodefs.available<5%", "cluster-dns=169.254.20.10", "register-with-taints=a=b:NoSchedule",
		"image-credential-provider-config=/c", "image-credential-provider-bin-dir=/b"}, file)
	if err != nil {
		t.Fatal(err)
	}
	c := kubelet.Config{
		ClusterDNS: []net.IP{net.IPv4(10, 43, 0, 10)}, ClusterDomain: "cluster.local", Listen: ":10250",
		Settings: &configuration.Settings{RegisterWithTaints: []corev1.Taint{{Key: "first", Effect: corev1.TaintEffectNoExecute}}},
	}
	if err := f.Apply(&c); err != nil {
		t.Fatal(err)
	}
	if c.Settings.MaxPods != 30 || c.Settings.EvictionHard["nodefs.available"] != "5%" || c.Listen != ":10250" || c.ClusterDomain != "x.test" {
		t.Errorf("%+v", c)
	}
	if c.CredentialProviders != "/c" || c.CredentialProviderBinDir != "/b" {
		t.Errorf("credential providers %q, %q", c.CredentialProviders, c.CredentialProviderBinDir)
	}
	if len(c.ClusterDNS) != 1 || c.ClusterDNS[0].String() != "169.254.20.10" {
		t.Errorf("DNS %v", c.ClusterDNS)
	}
	if taints := c.Settings.RegisterWithTaints; len(taints) != 2 || taints[0].Key != "first" || taints[1].Value != "b" {
		t.Errorf("taints %v", taints)
	}
	if got := f.ignored; len(got) != 1 || got[0] != "authorization.mode (is the cluster's; remove it)" {
		t.Errorf("ignored %v", got)
	}
	if mode := c.Settings.Authorization.Mode; mode != "Webhook" {
		t.Errorf("/configz shows what does not hold: mode %s", mode)
	}
	if got := f.Port(10250, false); got != 1 || f.Settings.Port != 1 {
		t.Errorf("no flag: port %d, /configz shows %d, want that of the file", got, f.Settings.Port)
	}
	if got := f.Port(10250, true); got != 10250 || f.Settings.Port != 10250 {
		t.Errorf("flag: port %d, /configz shows %d, want the flag's", got, f.Settings.Port)
	}
}

// TestValues: /flagz shows what flags say, not files, and nothing that is the cluster's.
func TestValues(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file, []byte("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: 20\npodsPerCore: 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := Parse([]string{"max-pods=30", "cluster-dns=10.0.0.1", "cluster-dns=10.0.0.2"}, file)
	if err != nil {
		t.Fatal(err)
	}
	got := f.Values()
	for name, want := range map[string]string{"max-pods": "30", "pods-per-core": "0", "cluster-dns": "[10.0.0.1,10.0.0.2]", "image-gc-high-threshold": "85", "config": file} {
		if got[name] != want {
			t.Errorf("--%s: %q, want %q", name, got[name], want)
		}
	}
	if _, shown := got["node-ip"]; shown || got["tls-cert-file"] != "" {
		t.Errorf("what is the cluster's is shown: %v", got)
	}
}

func TestRefused(t *testing.T) {
	for arg, want := range map[string]string{
		"max-pods":                 "is not of the form key=value",
		"node-ip=1.2.3.4":          "node-ip is the cluster's; use --node-ip",
		"kubeconfig=x":             "kubeconfig is the cluster's; remove it",
		"no-such=1":                `there is no "no-such"; knarr kubelet --help lists them`,
		"max-pod=1":                `there is no "max-pod"; did you mean "max-pods"? knarr kubelet --help lists them`,
		"network-plugin=cni":       `upstream has removed "network-plugin" from its kubelet; remove it here`,
		"container-runtime=remote": `upstream has removed "container-runtime" from its kubelet; remove it here`,
		"cloud-provider=external":  "cloud-provider is the cluster's; give its servers --cloud-provider",
		"max-pods=-1":              "invalid configuration: maxPods (--max-pods) -1 must not be a negative number",
		"config=/nowhere/file":     "failed to load kubelet config file, path: /nowhere/file",
		"cpu-manager-policy=magic": `unknown policy: "magic"`,
	} {
		if _, err := Parse([]string{arg}, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

func TestAlone(t *testing.T) {
	var f Flags
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Bind(set)
	if err := set.Parse([]string{"--port=1234", "--healthz-port=0", "--read-only-port=1255", "--cgroup-root=/mine", "--resolv-conf=", "--fail-cgroupv1=false", "--seccomp-default",
		"--cluster-dns=10.0.0.1", "--cluster-dns=10.0.0.2"}); err != nil {
		t.Fatal(err)
	}
	if err := f.Load(); err != nil {
		t.Fatal(err)
	}
	c := kubelet.Config{Listen: ":10250"}
	if err := f.Apply(&c); err != nil {
		t.Fatal(err)
	}
	if c.Listen != "0.0.0.0:1234" || c.Healthz != "-" || c.ReadOnly != "0.0.0.0:1255" || c.CgroupParent != "/mine/kubepods" || c.ResolvConf != "-" ||
		!*c.Settings.SeccompDefault || len(c.ClusterDNS) != 2 {
		t.Errorf("%+v", c)
	}
}

// TestFileOfTheCluster: what a file says of what is the cluster's is logged with what to do, and
// another runtime is refused.
func TestFileOfTheCluster(t *testing.T) {
	const head = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"
	for name, c := range map[string]struct{ text, used, ignored, err string }{
		"fields":          {"address: 0.0.0.0\nauthorization: {mode: AlwaysAllow}\nhealthzPort: 1\n", "", "address (is the cluster's; remove it), authorization.mode (is the cluster's; remove it), healthzPort (is the cluster's; use --kubelet-healthz-port)", ""},
		"another runtime": {"containerRuntimeEndpoint: unix:///run/crio.sock\n", "", "", `containerRuntimeEndpoint "unix:///run/crio.sock" is the cluster's; use --container-runtime-endpoint`},
		"not that one":    {"containerRuntimeEndpoint: unix:///run/crio.sock\n", "/run/other.sock", "", "use --container-runtime-endpoint"},
		"the same":        {"containerRuntimeEndpoint: unix:///run/crio.sock\n", "/run/crio.sock", "", ""},
		"kubeadm's":       {"containerRuntimeEndpoint: ''\n", "", "", ""},
	} {
		file := filepath.Join(t.TempDir(), "kubelet.yaml")
		if err := os.WriteFile(file, []byte(head+c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Parse(nil, file)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(f.ignored, ", "); got != c.ignored {
			t.Errorf("%s: ignored %q, want %q", name, got, c.ignored)
		}
		if err := f.CheckRuntime(c.used); c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
	}
}

// TestWrongIsNotIdle: what is refused is not logged as changing nothing before.
func TestWrongIsNotIdle(t *testing.T) {
	var log strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	for arg, want := range map[string]string{
		"feature-gates=MemoryQos=true": `unrecognized feature gate: MemoryQos; did you mean "MemoryQoS"?`,
		"max-open-files=-1":            "maxOpenFiles (--max-open-files) -1 must not be a negative number",
	} {
		if _, err := Parse([]string{arg}, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
	if log.String() != "" {
		t.Errorf("logged %s", log.String())
	}
}

// TestMissingPaths: a path that leads nowhere is logged before anything starts.
func TestMissingPaths(t *testing.T) {
	var log strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	dir := t.TempDir()
	if _, err := Parse([]string{"pod-manifest-path=" + dir, "resolv-conf=" + dir}, ""); err != nil || log.String() != "" {
		t.Errorf("%v, logged %s", err, log.String())
	}
	if _, err := Parse([]string{"pod-manifest-path=" + dir + "/none", "resolv-conf="}, ""); err != nil {
		t.Error(err)
	}
	if got, want := log.String(), `msg="kubelet: this path does not exist" field="staticPodPath (--pod-manifest-path)" path=`+dir+"/none\n"; !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("logged %s, want %s", got, want)
	}
}

// TestRemovedFlags: none of them is one of upstream's of today.
func TestRemovedFlags(t *testing.T) {
	b, err := os.ReadFile("testdata/flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if name, _, _ := strings.Cut(line, "\t"); slices.Contains(removed, name) {
			t.Errorf("upstream has %s", name)
		}
	}
}
