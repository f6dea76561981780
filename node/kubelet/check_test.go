package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/podtest"
)

// TestCheck: what a kubelet would not start with is refused before, with upstream's words,
// the setting and what to do; nothing is written.
func TestCheck(t *testing.T) {
	reservation := func(node int32, memory string) kubeletconfig.MemoryReservation {
		return kubeletconfig.MemoryReservation{NumaNode: node, Limits: corev1.ResourceList{"memory": resource.MustParse(memory)}}
	}
	static := func(s *configuration.Settings) { s.CPUManagerPolicy = "static" }
	for name, c := range map[string]struct {
		set   func(*configuration.Settings)
		state string // of the CPU manager
		want  string
	}{
		"nothing said":     {func(*configuration.Settings) {}, "", ""},
		"static":           {func(s *configuration.Settings) { static(s); s.KubeReserved = map[string]string{"cpu": "500m"} }, "", ""},
		"nothing reserved": {static, "", "[cpumanager] unable to determine reserved CPU resources for static policy; set reservedSystemCPUs (--reserved-cpus), or cpu in systemReserved (--system-reserved) or kubeReserved (--kube-reserved)"},
		"no such CPU":      {func(s *configuration.Settings) { s.ReservedSystemCPUs = "0,9" }, "", "reserved-cpus: 0,9 is not a subset of online-cpus: 0-7; take some of these in reservedSystemCPUs (--reserved-cpus)"},
		"options of none": {func(s *configuration.Settings) {
			s.CPUManagerPolicyOptions = map[string]string{"full-pcpus-only": "true"}
		}, "", "None policy: received unsupported options=map[full-pcpus-only:true]; leave cpuManagerPolicyOptions (--cpu-manager-policy-options) out"},
		"alpha option": {func(s *configuration.Settings) {
			static(s)
			s.ReservedSystemCPUs = "0"
			s.CPUManagerPolicyOptions = map[string]string{"align-by-socket": "true"}
		}, "", `new static policy error: CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided`},
		"another policy": {func(s *configuration.Settings) { static(s); s.ReservedSystemCPUs = "0" }, `{"policyName":"none","defaultCpuSet":"","checksum":0}`, `configured policy "static" differs from state checkpoint policy "none", please drain this node and delete the CPU manager checkpoint file`},
		"given away":     {func(s *configuration.Settings) { static(s); s.ReservedSystemCPUs = "0" }, `{"policyName":"static","defaultCpuSet":"0-9","checksum":0}`, ""}, // the kubelet says so, while the rest runs
		"unknown option": {func(s *configuration.Settings) {
			s.TopologyManagerPolicy, s.TopologyManagerPolicyOptions = "restricted", map[string]string{"x": "1"}
		}, "", `topologyManagerPolicyOptions (--topology-manager-policy-options): unknown Topology Manager Policy option: "x"`},
		"option of none": {func(s *configuration.Settings) { s.TopologyManagerPolicyOptions = map[string]string{"x": "1"} }, "", ""},
		"more than there is": {func(s *configuration.Settings) {
			s.SystemReserved, s.KubeReserved = map[string]string{"memory": "5Gi"}, map[string]string{"memory": "4Gi", "cpu": "9"}
		}, "", `invalid Node Allocatable configuration. Resource "cpu" has a reservation of 9 but capacity of 8. Expected capacity >= reservation. Resource "memory" has a reservation of 9316Mi but capacity of 8Gi. Expected capacity >= reservation. Reserve less in systemReserved (--system-reserved)`},
		"more disk": {func(s *configuration.Settings) { s.SystemReserved = map[string]string{"ephemeral-storage": "1Ei"} }, "", `Resource "ephemeral-storage" has a reservation of`},
		"memory": {func(s *configuration.Settings) {
			s.MemoryManagerPolicy, s.ReservedMemory = "Static", []kubeletconfig.MemoryReservation{reservation(0, "100Mi")}
		}, "", ""},
		"does not add up": {func(s *configuration.Settings) {
			s.MemoryManagerPolicy, s.ReservedMemory = "Static", []kubeletconfig.MemoryReservation{reservation(0, "1Gi")}
		}, "", `the total amount "1Gi" of type "memory" is not equal to the value "100Mi" determined by Node Allocatable feature; reservedMemory (--reserved-memory) has to be`},
		"no such NUMA node": {func(s *configuration.Settings) {
			s.MemoryManagerPolicy, s.ReservedMemory = "Static", []kubeletconfig.MemoryReservation{reservation(3, "100Mi")}
		}, "", "the reserved memory configuration references a NUMA node 3 that does not exist on this machine"},
		"no memory reserved": {func(s *configuration.Settings) {
			s.MemoryManagerPolicy = "Static"
			s.EvictionHard = map[string]string{"nodefs.available": "1%"}
		}, "", "[memorymanager] you should specify the system reserved memory; set memory in reservedMemory (--reserved-memory)"},
		"users of its pods": {func(s *configuration.Settings) {
			s.UserNamespaces = &kubeletconfig.UserNamespaces{IDsPerPod: new(int64(67108864))}
		}, "", "userNamespaces.idsPerPod, maxPods (--max-pods), or the user kubelet in /etc/subuid and /etc/subgid: kubelet user assigned IDs are not enough to support 110 pods"},
		"swap": {func(s *configuration.Settings) { s.MemorySwap.SwapBehavior = "LimitedSwap" }, "", map[bool]string{false: "swap feature is enabled and LimitedSwap but it is only supported with cgroupv2"}[cgroup.Open().V2()]},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.state != "" {
				if err := os.WriteFile(filepath.Join(dir, "cpu_manager_state"), []byte(c.state), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var s configuration.Settings
			c.set(&s)
			configuration.Default(&s)
			if err := configuration.Validate(&s); err != nil {
				t.Fatal(err)
			}
			read := func() (machine, error) { return machine{cpus: 8, memory: 8 << 30}, nil }
			sys := podtest.CPUs(t, 8, 1)
			if err := os.WriteFile(filepath.Join(sys, "node", "node0", "meminfo"), []byte("Node 0 MemTotal: 8388608 kB\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			err := check(dir, sys, read, &s)
			if got := fmt.Sprint(err); c.want == "" && err != nil || !strings.Contains(got, c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
			if files, err := os.ReadDir(dir); err != nil || c.state == "" && len(files) > 0 {
				t.Errorf("written: %v, %v", files, err)
			}
		})
	}
}

// TestCheckProviders: what is wrong with credential providers is said before the start, with the
// flag.
func TestCheckProviders(t *testing.T) {
	const head = "kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1\n"
	const good = "providers: [{name: there, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: ['r.test'], defaultCacheDuration: 1m}]\n"
	for name, c := range map[string]struct{ config, bin, want string }{
		"neither":            {"", "", ""},
		"both":               {head + good, "bin", ""},
		"no file":            {"-", "bin", `--image-credential-provider-config: unable to access path "`},
		"no first flag":      {"", "bin", "--image-credential-provider-config: credential provider config path is empty; give --image-credential-provider-config too"},
		"no second flag":     {head + good, "", "--image-credential-provider-bin-dir: plugin binary directory is empty; give --image-credential-provider-bin-dir too"},
		"no directory":       {head + good, "none", "--image-credential-provider-bin-dir: plugin binary directory "},
		"no program":         {head + strings.Replace(good, "there", "gone", 1), "bin", "bin/gone did not exist"},
		"a misspelt field":   {head + strings.Replace(good, "providers", "provider", 1), "bin", `strict decoding error: unknown field "provider"; did you mean "providers"?`},
		"another version":    {"kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v2\n" + good, "bin", `no kind "CredentialProviderConfig" is registered for version "kubelet.config.k8s.io/v2"`},
		"no provider":        {head, "bin", "failed to validate credential provider config: providers: Required value"},
		"no time in a cache": {head + strings.Replace(good, "1m", "1x", 1), "bin", "providers[0].defaultCacheDuration: time: unknown unit"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file, bin := "", ""
			if c.config != "" {
				file = filepath.Join(dir, "config.yaml")
			}
			if c.config != "" && c.config != "-" {
				write(t, file, c.config)
			}
			if c.bin != "" {
				bin = filepath.Join(dir, c.bin)
			}
			if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "bin", "there"), []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := checkProviders(file, bin); c.want == "" && err != nil || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}
