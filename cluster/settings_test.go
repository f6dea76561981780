package cluster

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serverOptions are those of flags.
func serverOptions(t *testing.T, args ...string) *Options {
	t.Helper()
	var o Options
	f := pflag.NewFlagSet("server", pflag.ContinueOnError)
	o.Flags(f)
	if err := f.Parse(append([]string{"--data-dir", t.TempDir(), "--node-name", "n", "--node-ip", "10.9.0.1", "--disable-agent"}, args...)); err != nil {
		t.Fatal(err)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	return &o
}

// TestUnfitKubelet: what the kubelet would not start with is refused with the flag that
// says it, where there is to be one.
func TestUnfitKubelet(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"server":        {[]string{"--kubelet-arg=cpu-manager-policy=static"}, "--kubelet-arg: [cpumanager] unable to determine reserved CPU resources for static policy; set reservedSystemCPUs"},
		"another value": {[]string{"--kubelet-arg=system-reserved=memory=1Ei"}, "--kubelet-arg: invalid Node Allocatable configuration."},
		"once":          {[]string{"--kubelet-arg=reserved-cpus=x"}, "--kubelet-arg: invalid configuration: unable to parse reservedSystemCPUs"},
		"fits":          {[]string{"--kubelet-arg=system-reserved=cpu=100m"}, ""},
		"no kubelet":    {[]string{"--kubelet-arg=cpu-manager-policy=static", "--disable-agent"}, ""},
	} {
		var o Options
		f := pflag.NewFlagSet("server", pflag.ContinueOnError)
		o.Flags(f)
		if err := f.Parse(append([]string{"--data-dir", t.TempDir(), "--node-name", "n", "--node-ip", "10.9.0.1"}, c.args...)); err != nil {
			t.Fatal(err)
		}
		err := o.Validate()
		if got := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && (!strings.HasPrefix(got, c.want) || strings.Contains(got, "\n")) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	o := AgentOptions{Server: "https://10.9.0.2:6443", Token: "t"}
	o.DataDir, o.NodeName, o.NodeIP, o.KubeletPort = t.TempDir(), "n", "10.9.0.1", 10250
	o.KubeletArgs = []string{"cpu-manager-policy=static"}
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--kubelet-arg: [cpumanager] unable to determine") {
		t.Errorf("agent: %v", err)
	}
}

// A further server takes over what the cluster has, and what is said otherwise
// is refused with both values.
func TestInherit(t *testing.T) {
	first := serverOptions(t, "--cluster-cidr", "10.1.0.0/16", "--service-cidr", "10.2.0.0/16", "--cluster-domain", "a.test", "--https-listen-port", "7443",
		"--service-node-port-range", "20000-20100", "--flannel-backend", "host-gw", "--disable", "coredns,scheduler")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing said": {nil, ""},
		"the same":     {[]string{"--cluster-cidr", "10.1.0.0/16", "--disable", "coredns"}, ""},
		"range":        {[]string{"--cluster-cidr", "10.3.0.0/16"}, "--cluster-cidr: 10.3.0.0/16: the cluster has 10.1.0.0/16, and its servers must agree; give that or leave the flag out"},
		"the default":  {[]string{"--service-cidr", "10.43.0.0/16"}, "--service-cidr: 10.43.0.0/16: the cluster has 10.2.0.0/16"},
		"port":         {[]string{"--https-listen-port", "6443"}, "--https-listen-port: 6443: the cluster has 7443"},
		"part":         {[]string{"--disable", "coredns,network"}, "--disable: network: the cluster runs it"},
		"no part":      {[]string{"--disable", "controller-manager"}, "--disable: controller-manager: the cluster does not run coredns"},
	} {
		o := serverOptions(t, c.args...)
		err := o.inherit(first.settings())
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
			continue
		}
		if err == nil && (!maps.Equal(o.settings(), first.settings()) || !slices.Equal(o.clusterCIDRs, first.clusterCIDRs) || !slices.Equal(o.clusterDNS, first.clusterDNS) || o.nodePorts != first.nodePorts || o.disabled("scheduler")) {
			t.Errorf("%s: inherited %v of %v", name, o.settings(), first.settings())
		}
	}
}

func TestUnlike(t *testing.T) {
	nodes := []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: "10.0.0.1"}}}}}
	for _, c := range []struct{ name, ip, want string }{
		{"b", "10.0.0.2", ""},
		{"a", "10.0.0.2", "--node-name a is taken by a node; give another name, or kubectl delete node a"},
		{"b", "10.0.0.1", "--node-ip 10.0.0.1 is that of node a"},
	} {
		err := unlike(nodes, &serverRequest{NodeName: c.name, NodeIP: netip.MustParseAddr(c.ip)})
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v", c.name, c.ip, err)
		}
	}
}

func TestServersOf(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.2"}}, {Addresses: []string{"10.0.0.1"}}},
		Ports:     []discoveryv1.EndpointPort{{Port: new(int32(6443))}},
	}
	if got := fmt.Sprint(serversOf(slice)); got != "[10.0.0.1:6443 10.0.0.2:6443]" {
		t.Error(got)
	}
	if got := serversOf(&discoveryv1.EndpointSlice{}); got != nil {
		t.Error(got)
	}
}

// Who guesses is out for a minute, alone; what is kept of guessers is bounded.
func TestFailedAttempts(t *testing.T) {
	var s failedAttempts
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a, b := source("10.0.0.1:1000"), source("10.0.0.2:1000")
	for range maxFailedAttempts {
		if s.exceeded(a, now) {
			t.Fatal("out too soon")
		}
		s.add(a, now)
	}
	if !s.exceeded(a, now.Add(attemptWindow-1)) || s.exceeded(b, now) || s.exceeded(a, now.Add(attemptWindow)) {
		t.Error("the wrong one is out, or at the wrong time")
	}
	for i := range 2 * maxAddresses {
		s.add(netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)}), now)
	}
	if len(s.by) > maxAddresses {
		t.Errorf("%d addresses are kept", len(s.by))
	}
	if x, y := source("[fd00::1]:5"), source("[fd00::2]:6"); x != y || x == source("[fd00:0:0:1::1]:5") {
		t.Errorf("%v %v", x, y)
	}
}

// TestConfigDirectory: files of the directory come after the file, in k3s' way.
func TestConfigDirectory(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	load := func(args ...string) (*Options, error) {
		var o Options
		f := pflag.NewFlagSet("server", pflag.ContinueOnError)
		o.Flags(f)
		if err := f.Parse(append([]string{"--config", config}, args...)); err != nil {
			t.Fatal(err)
		}
		return &o, o.Load(f)
	}
	write(config, "node-label: [a=1]\nkubelet-arg: max-pods=10\nnode-name: first\n")
	write(config+".d/10.yaml", "node-label: [b=2]\nkubelet-arg+: [pod-max-pids=100]\nnode-name: second\n")
	write(config+".d/20.yaml", "node-label+: c=3\n")
	write(config+".d/ignored.txt", "x: y\n")
	o, err := load()
	if err != nil || !slices.Equal(o.NodeLabels, []string{"b=2", "c=3"}) || !slices.Equal(o.KubeletArgs, []string{"max-pods=10", "pod-max-pids=100"}) || o.NodeName != "second" {
		t.Errorf("labels %v, kubelet %v, name %s: %v", o.NodeLabels, o.KubeletArgs, o.NodeName, err)
	}
	if o, err := load("--node-name=third"); err != nil || o.NodeName != "third" {
		t.Errorf("given: %s, %v", o.NodeName, err)
	}
	write(config+".d/30.yaml", "node-lable+: c=3\n")
	if _, err := load(); err == nil || !strings.Contains(err.Error(), config+`.d/30.yaml: unknown key "node-lable+"; did you mean`) {
		t.Errorf("unknown key: %v", err)
	}
	if err := os.RemoveAll(config); err != nil {
		t.Fatal(err)
	}
	if _, err := load(); err == nil {
		t.Error("a file that was given is not there")
	}
}
