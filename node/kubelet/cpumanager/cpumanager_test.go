package cpumanager

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/topologymanager"
)

// machine has CPUs that are siblings half of all apart, and alternate between its
// sockets, each of which is a NUMA node: that of upstream's tests, with two sockets of
// six cores in all.
func machine(cpus, sockets int) (t Topology) {
	for id := range cpus {
		core := id % (cpus / 2)
		t.CPUs = append(t.CPUs, CPU{ID: id, Core: core, Socket: core % sockets, Node: core % sockets, Cache: core % sockets})
	}
	return t
}

func TestPick(t *testing.T) {
	dual, single := machine(12, 2), machine(8, 1)
	for _, c := range []struct {
		name    string
		t       Topology
		free    string
		n       int
		options Options
		want    string
	}{
		{"none", single, "0-7", 0, Options{}, ""},
		{"one", single, "0-7", 1, Options{}, "0"},
		{"of a core that is not whole", single, "1-7", 1, Options{}, "4"},
		{"a core", single, "0-7", 2, Options{}, "0,4"},
		{"a core, since one is not whole", single, "1-7", 2, Options{}, "1,5"},
		{"two cores", single, "0-7", 4, Options{}, "0-1,4-5"},
		{"a core and a half", single, "0-7", 3, Options{}, "0-1,4"},
		{"all", single, "0-7", 8, Options{}, "0-7"},
		{"too many", single, "0-6", 8, Options{}, "not enough cpus available to satisfy request: requested=8, available=7"},
		{"of the socket that has less", dual, "1-11", 1, Options{}, "6"},
		{"a socket", dual, "0-11", 6, Options{}, "0,2,4,6,8,10"},
		{"the socket that is whole", dual, "1-11", 6, Options{}, "1,3,5,7,9,11"},
		{"a socket and a core", dual, "0-11", 8, Options{}, "0-2,4,6-8,10"},
		{"two cores of a socket", dual, "0-11", 4, Options{}, "0,2,6,8"},
		{"of different cores", dual, "0-11", 4, Options{AcrossCores: true}, "0,2,4,6"},
		{"evenly", dual, "0-11", 8, Options{AcrossNodes: true}, "0-3,6-9"},
		{"on one node if that is enough", dual, "0-11", 4, Options{AcrossNodes: true}, "0,2,6,8"},
		{"evenly by cores", dual, "0-11", 10, Options{AcrossNodes: true, FullCores: true}, "0-4,6-10"},
	} {
		free, err := cpuset.Parse(c.free)
		if err != nil {
			t.Fatal(err)
		}
		m := &Manager{c: Config{Topology: c.t, Options: c.options}}
		got, err := m.pick(free, c.n)
		is := got.String()
		if err != nil {
			is = err.Error()
		}
		if is != c.want {
			t.Errorf("%s: %s, want %s", c.name, is, c.want)
		}
	}
}

// TestCaches: CPUs are of one cache if they fit into one, whatever is first.
func TestCaches(t *testing.T) {
	topology := machine(16, 1)
	for i := range topology.CPUs {
		topology.CPUs[i].Cache = topology.CPUs[i].Core / 4
	}
	free := topology.all().Difference(cpuset.New(0, 8)) // a core of the first cache is taken
	for n, want := range map[int]string{4: "1-2,9-10", 8: "4-7,12-15"} {
		m := &Manager{c: Config{Topology: topology, Options: Options{ByCache: true}}}
		if got, err := m.pick(free, n); err != nil || got.String() != want {
			t.Errorf("%d: %s, %v; want %s", n, got, err, want)
		}
	}
}

func guaranteed(name, cpu string) *corev1.Pod {
	p := podtest.Pod(name, "c")
	p.Spec.Containers[0].Resources = podtest.Resources(cpu, "1Gi", cpu, "1Gi")
	return p
}

func static(t *testing.T, dir string, change func(*Config)) (*Manager, error) {
	t.Helper()
	c := Config{Dir: dir, Policy: Static, Topology: machine(8, 1), Reserved: 2, ReservedSet: cpuset.New()}
	if change != nil {
		change(&c)
	}
	return New(c)
}

func TestStatic(t *testing.T) {
	dir := t.TempDir()
	m, err := static(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, half, burst := guaranteed("a", "2"), guaranteed("half", "500m"), podtest.Pod("burst", "c")
	for _, p := range []*corev1.Pod{a, half, burst} {
		if err := m.Allocate(p, &p.Spec.Containers[0], 0); err != nil {
			t.Fatal(err)
		}
	}
	if x, y := m.For(a.UID, "c"), m.For(half.UID, "c"); x != "1,5" || y != "0,2-4,6-7" {
		t.Errorf("%s, %s", x, y)
	}
	b := guaranteed("b", "5")
	if err := m.Allocate(b, &b.Spec.Containers[0], 0); err == nil || err.Error() != "not enough cpus available to satisfy request: requested=5, available=4" {
		t.Error(err)
	}
	again, err := static(t, dir, nil) // after a restart
	if err != nil {
		t.Fatal(err)
	}
	if x := again.For(a.UID, "c"); x != "1,5" {
		t.Errorf("after a restart %s", x)
	}
	if err := again.Prune(map[types.UID]bool{}); err != nil {
		t.Fatal(err)
	}
	if x := again.For(half.UID, "c"); x != "0-7" {
		t.Errorf("after the end of all %s", x)
	}
}

// TestInitContainers: what one had that has ended is used again, what a sidecar has is not.
func TestInitContainers(t *testing.T) {
	m, err := static(t, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := guaranteed("p", "4")
	init, side := p.Spec.Containers[0], p.Spec.Containers[0]
	init.Name, side.Name = "init", "side"
	side.Resources = podtest.Resources("2", "1Gi", "2", "1Gi")
	side.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	p.Spec.InitContainers = []corev1.Container{init, side}
	for _, c := range append(p.Spec.InitContainers, p.Spec.Containers...) {
		if err := m.Allocate(p, &c, 0); err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
	}
	if a, b, c := m.For(p.UID, "init"), m.For(p.UID, "side"), m.For(p.UID, "c"); a != "1-2,5-6" || b != "1,5" || c != "2-3,6-7" {
		t.Errorf("init %s, sidecar %s, container %s", a, b, c)
	}
}

func TestFullCores(t *testing.T) {
	m, err := static(t, t.TempDir(), func(c *Config) { c.Options.FullCores = true; c.Reserved = 1 })
	if err != nil {
		t.Fatal(err)
	}
	for cpus, want := range map[string]string{
		"3": "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
		"8": "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, requested CPUs = 8, CPUs per core = 2",
	} {
		p := guaranteed("p", cpus)
		if err := m.Allocate(p, &p.Spec.Containers[0], 0); err == nil || err.Error() != want {
			t.Errorf("%s: %v", cpus, err)
		}
	}
}

func TestHints(t *testing.T) {
	n := topologymanager.NodesOf
	m, err := static(t, t.TempDir(), func(c *Config) { c.Topology = machine(12, 2) })
	if err != nil {
		t.Fatal(err)
	}
	for cpus, want := range map[string]topologymanager.Hints{
		"500m": nil,
		"2":    {{Nodes: n(0), Preferred: true}, {Nodes: n(1), Preferred: true}, {Nodes: n(0, 1)}},
		"5":    {{Nodes: n(1), Preferred: true}, {Nodes: n(0, 1)}},
		"8":    {{Nodes: n(0, 1), Preferred: true}},
		"12":   {},
	} {
		p := guaranteed("p", cpus)
		if got := m.Hints(p, &p.Spec.Containers[0]); fmt.Sprint(got) != fmt.Sprint(want) || (got == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", cpus, got, want)
		}
	}
	p := guaranteed("p", "2")
	if err := m.Allocate(p, &p.Spec.Containers[0], n(1)); err != nil {
		t.Fatal(err)
	}
	if got := m.For(p.UID, "c"); got != "1,7" {
		t.Errorf("on node 1: %s", got)
	}
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		file   string
		want   string
	}{
		"nothing reserved":    {func(c *Config) { c.Reserved = 0 }, "", "unable to determine reserved CPU resources for static policy; set reservedSystemCPUs"},
		"too much reserved":   {func(c *Config) { c.Reserved = 9 }, "", "unable to reserve the required amount of CPUs"},
		"another policy":      {nil, `{"policyName":"none","defaultCpuSet":"","checksum":0}`, `configured policy "static" differs from state checkpoint policy "none"`},
		"other CPUs":          {nil, `{"policyName":"static","defaultCpuSet":"0-9","checksum":0}`, `current set of available CPUs "0-7" doesn't match with CPUs in state "0-9"`},
		"one in two places":   {nil, `{"policyName":"static","defaultCpuSet":"0-7","entries":{"p":{"c":"1"}},"checksum":0}`, `overlaps with default cpuset`},
		"reserved given away": {nil, `{"policyName":"static","defaultCpuSet":"1-7","entries":{"p":{"c":"0"}},"checksum":0}`, `not all reserved cpus: "0,4" are present in defaultCpuSet: "1-7"`},
		"strict":              {func(c *Config) { c.Options.Strict = true }, `{"policyName":"static","defaultCpuSet":"0-7","checksum":0}`, `some of strictly reserved cpus: "0,4" are present in defaultCpuSet: "0-7"`},
		"damaged":             {nil, `{"policyName":"static","defaultCpuSet":"0-7","checksum":1}`, "checkpoint is corrupted"},
		"by socket":           {func(c *Config) { c.Options.BySocket, c.SingleNode = true, true }, "", "incompatible with CPUManager align-by-socket policy option"},
	} {
		dir := t.TempDir()
		if c.file != "" {
			if err := os.WriteFile(filepath.Join(dir, "cpu_manager_state"), []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := static(t, dir, c.change); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseOptions(t *testing.T) {
	alpha := map[string]bool{"CPUManagerPolicyAlphaOptions": true}
	for name, c := range map[string]struct {
		options map[string]string
		gates   map[string]bool
		want    string
	}{
		"unknown":             {map[string]string{"x": "true"}, nil, `unknown CPU Manager Policy option: "x"`},
		"no value":            {map[string]string{"full-pcpus-only": "x"}, nil, `bad value for option "full-pcpus-only": strconv.ParseBool: parsing "x": invalid syntax`},
		"not together":        {map[string]string{"full-pcpus-only": "true", "distribute-cpus-across-cores": "true"}, alpha, "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time"},
		"alpha":               {map[string]string{"align-by-socket": "true"}, nil, `CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided; set CPUManagerPolicyAlphaOptions in featureGates (--feature-gates)`},
		"alpha with its gate": {map[string]string{"align-by-socket": "true"}, alpha, ""},
		"alpha with all":      {map[string]string{"align-by-socket": "true"}, map[string]bool{"AllAlpha": true}, ""},
		"beta":                {map[string]string{"distribute-cpus-across-numa": "true"}, nil, ""},
		"beta without":        {map[string]string{"distribute-cpus-across-numa": "true"}, map[string]bool{"AllBeta": false}, `CPU Manager Policy Beta-level Options not enabled, but option "distribute-cpus-across-numa" provided; set CPUManagerPolicyBetaOptions in featureGates (--feature-gates)`},
		"stable":              {map[string]string{"strict-cpu-reservation": "true"}, nil, ""},
	} {
		got := ""
		if _, err := ParseOptions(c.options, c.gates); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestReadTopology reads a machine of two sockets, with the files that matter.
func TestReadTopology(t *testing.T) {
	root := podtest.CPUs(t, 8, 2)
	got, err := ReadTopology(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.CPUs) != 8 || got.CPUs[5] != (CPU{ID: 5, Core: 1, Socket: 1, Node: 1, Cache: 1}) || got.perCore() != 2 || len(got.Nodes()) != 2 || got.Distances[0][1] != 21 {
		t.Errorf("%+v", got)
	}
	if _, err := ReadTopology(t.TempDir()); err == nil {
		t.Error("a directory without CPUs is one")
	}
}
