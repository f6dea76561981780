package memorymanager

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"knarr/node/kubelet/memorymanager/state"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/topologymanager"
)

const (
	gib = 1 << 30
	mib = 1 << 20
)

// machine has nodes of 4 GiB, 1 GiB of which is huge pages, and 1 GiB of the first node's
// is reserved.
func machine(nodes int) (c Config) {
	for id := range nodes {
		c.Nodes = append(c.Nodes, Node{ID: id, Memory: 4 * gib, HugePages: map[corev1.ResourceName]uint64{"hugepages-2Mi": gib}})
	}
	c.Policy, c.Reserved = Static, Reserved{0: {corev1.ResourceMemory: gib}}
	return c
}

func manager(t *testing.T, dir string, nodes int) *Manager {
	t.Helper()
	c := machine(nodes)
	c.Dir = dir
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// guaranteed is a pod of containers by their memory; those that begin with i are init
// containers, those with s sidecars. After a + come huge pages.
func guaranteed(name string, containers ...string) *corev1.Pod {
	p := podtest.Pod(name)
	for _, c := range containers {
		name, memory, _ := strings.Cut(c, "=")
		memory, huge, _ := strings.Cut(memory, "+")
		r := podtest.Resources("1", memory, "1", memory)
		if huge != "" {
			r.Requests["hugepages-2Mi"], r.Limits["hugepages-2Mi"] = resource.MustParse(huge), resource.MustParse(huge)
		}
		switch name[0] {
		case 'i', 's':
			podtest.WithInit(p, name)
			p.Spec.InitContainers[len(p.Spec.InitContainers)-1].Resources = r
		default:
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: podtest.Image, Resources: r})
		}
	}
	return p
}

// allocate admits a pod as the kubelet does, and says what of it failed.
func allocate(m *Manager, p *corev1.Pod, near topologymanager.Hint) error {
	for i := range p.Spec.InitContainers {
		if err := m.Allocate(p, &p.Spec.InitContainers[i], near); err != nil {
			return err
		}
	}
	for i := range p.Spec.Containers {
		if err := m.Allocate(p, &p.Spec.Containers[i], near); err != nil {
			return err
		}
	}
	return nil
}

// free is what the nodes have left, memory and huge pages in MiB.
func free(m *Manager) (out string) {
	for id := range len(m.nodes) {
		n := m.nodes[id]
		out += fmt.Sprintf(" %d/%d", n.MemoryMap["memory"].Free/mib, n.MemoryMap["hugepages-2Mi"].Free/mib)
	}
	return out[1:]
}

// TestAllocate: memory is of as few nodes as can be, of nodes together only if nothing was
// given of them alone, and what is left is right.
func TestAllocate(t *testing.T) {
	hint := func(preferred bool, ids ...int) topologymanager.Hint {
		return topologymanager.Hint{Nodes: topologymanager.NodesOf(ids...), Preferred: preferred}
	}
	type step struct {
		pod  *corev1.Pod
		near topologymanager.Hint
		want string // the nodes of its containers, or what is wrong
	}
	for _, c := range []struct {
		name  string
		nodes int
		steps []step
		free  string
	}{
		{"of one node", 2, []step{{guaranteed("a", "c=1Gi"), hint(false), "c:0"}}, "1024/1024 3072/1024"},
		{"with huge pages", 2, []step{{guaranteed("a", "c=1Gi+100Mi"), hint(false), "c:0"}}, "1024/924 3072/1024"},
		{"of the node that has enough", 2, []step{{guaranteed("a", "c=3Gi"), hint(false), "c:1"}}, "2048/1024 0/1024"},
		{"of the node the others are near", 2, []step{{guaranteed("a", "c=1Gi"), hint(true, 1), "c:1"}}, "2048/1024 2048/1024"},
		{"of two nodes together", 2, []step{{guaranteed("a", "c=4Gi"), hint(false), "c:0,1"}}, "0/1024 1024/1024"},
		{"together again", 2, []step{{guaranteed("a", "c=4Gi"), hint(false), "c:0,1"}, {guaranteed("b", "c=1000Mi"), hint(true, 0, 1), "c:0,1"}}, "0/1024 24/1024"},
		{"not alone of a node in a group", 2, []step{{guaranteed("a", "c=4Gi"), hint(false), "c:0,1"},
			{guaranteed("b", "c=1000Mi"), hint(true), "[memorymanager] failed to find the default preferred hint"}}, "0/1024 1024/1024"},
		{"not together with a node that gave some alone", 2, []step{{guaranteed("a", "c=1Gi"), hint(true, 0), "c:0"},
			{guaranteed("b", "c=4Gi"), hint(true, 0, 1), "[memorymanager] preferred hint violates NUMA node allocation"}}, "1024/1024 3072/1024"},
		{"too much", 2, []step{{guaranteed("a", "c=6Gi"), hint(false), "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"}}, "2048/1024 3072/1024"},
		{"too much for the hint", 3, []step{{guaranteed("a", "c=4Gi"), hint(false, 2), "c:0,2"}}, "0/1024 3072/1024 1024/1024"},
		{"too much for a preferred hint", 2, []step{{guaranteed("a", "c=1Gi"), hint(true, 0), "c:0"},
			{guaranteed("b", "c=2Gi"), hint(true, 0), "[memorymanager] failed to find NUMA nodes to extend the current topology hint"}}, "1024/1024 3072/1024"},
		{"huge pages that are not there", 2, []step{{guaranteed("a", "c=1Gi+3Gi"), hint(false), "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"}}, "2048/1024 3072/1024"},
		{"Burstable", 2, []step{{podtest.Pod("a", "c"), hint(false), "c:"}}, "2048/1024 3072/1024"},
		{"after an init container", 2, []step{{guaranteed("a", "i=2Gi", "c=1Gi"), hint(false), "i:0 c:0"}}, "0/1024 3072/1024"},
		{"more than the init container", 2, []step{{guaranteed("a", "i=1Gi", "c=2Gi"), hint(false), "i:0 c:0"}}, "0/1024 3072/1024"},
		{"a sidecar keeps its own", 2, []step{{guaranteed("a", "s=1Gi", "i=1Gi", "c=1Gi"), hint(false), "s:0 i:0 c:0"}}, "0/1024 3072/1024"},
	} {
		m := manager(t, t.TempDir(), c.nodes)
		for _, s := range c.steps {
			got := ""
			if err := allocate(m, s.pod, s.near); err != nil {
				got = err.Error()
			} else {
				for _, x := range append(s.pod.Spec.InitContainers, s.pod.Spec.Containers...) {
					got += " " + x.Name + ":" + m.Nodes(s.pod.UID, x.Name)
				}
				got = got[1:]
			}
			if got != s.want {
				t.Errorf("%s: %s: %s, want %s", c.name, s.pod.Name, got, s.want)
			}
		}
		if got := free(m); got != c.free {
			t.Errorf("%s: left %s, want %s", c.name, got, c.free)
		}
		if err := m.Prune(nil); err != nil {
			t.Fatal(err)
		}
		if fresh := manager(t, t.TempDir(), c.nodes); !reflect.DeepEqual(m.nodes, fresh.nodes) || len(m.all) != 0 {
			t.Errorf("%s: after the end of all pods %s, %v", c.name, free(m), m.all)
		}
	}
}

// TestHints: what is said of a pod and of a container, before and after it has its memory.
func TestHints(t *testing.T) {
	m := manager(t, t.TempDir(), 2)
	show := func(all []topologymanager.Hints) (out string) {
		for i, hints := range all {
			if i > 0 {
				out += " and "
			}
			for j, h := range hints {
				if j > 0 {
					out += " "
				}
				out += fmt.Sprint(h.Nodes.IDs())
				if h.Preferred {
					out += "!"
				}
			}
		}
		return out
	}
	for _, c := range []struct {
		pod              *corev1.Pod
		container, whole string
	}{
		{guaranteed("small", "c=1Gi"), "[0]! [1]! [0 1]", "[0]! [1]! [0 1]"},
		{guaranteed("small", "c=1Gi+2Mi"), "[0]! [1]! [0 1] and [0]! [1]! [0 1]", "[0]! [1]! [0 1] and [0]! [1]! [0 1]"},
		{guaranteed("two", "c=1500Mi", "d=1500Mi"), "[0]! [1]! [0 1]", "[1]! [0 1]"},
		{guaranteed("init", "i=3Gi", "s=1Gi", "c=1Gi"), "[1]! [0 1]", "[1]! [0 1]"},
		{guaranteed("large", "c=4Gi"), "[0 1]!", "[0 1]!"},
		{guaranteed("giant", "c=40Gi"), "", ""},
		{podtest.Pod("burst", "c"), "", ""},
	} {
		first := &append(c.pod.Spec.InitContainers, c.pod.Spec.Containers...)[0]
		if got := show(m.Hints(c.pod, first)); got != c.container {
			t.Errorf("%s: %s, want %s", c.pod.Name, got, c.container)
		}
		if got := show(m.PodHints(c.pod)); got != c.whole {
			t.Errorf("%s as a whole: %s, want %s", c.pod.Name, got, c.whole)
		}
	}
	p := guaranteed("p", "c=1Gi+2Mi")
	if err := allocate(m, p, topologymanager.Hint{Nodes: 2}); err != nil {
		t.Fatal(err)
	}
	if x, y := show(m.Hints(p, &p.Spec.Containers[0])), show(m.PodHints(p)); x != "[1]! and [1]!" || y != x {
		t.Errorf("what is given: %s, %s", x, y)
	}
	if got := show(m.Hints(guaranteed("large", "c=4Gi"), &guaranteed("large", "c=4Gi").Spec.Containers[0])); got != "" {
		t.Errorf("together, after one was given alone: %s", got)
	}
}

// TestInit: the memory of init containers is free once others start, and they are not
// given any when the pod is admitted again after a restart of the kubelet.
func TestInit(t *testing.T) {
	dir := t.TempDir()
	m, p := manager(t, dir, 2), guaranteed("p", "i=2Gi", "c=1Gi")
	if err := allocate(m, p, topologymanager.Hint{}); err != nil {
		t.Fatal(err)
	}
	if err := m.Started(p, "i"); err != nil || free(m) != "0/1024 3072/1024" {
		t.Errorf("while the init container runs %s, %v", free(m), err)
	}
	if err := m.Started(p, "c"); err != nil || free(m) != "1024/1024 3072/1024" {
		t.Errorf("after it %s, %v", free(m), err)
	}
	m = manager(t, dir, 2)
	if h := m.Hints(p, &p.Spec.InitContainers[0]); h != nil {
		t.Errorf("hints for one that has ended: %v", h)
	}
	if err := allocate(m, p, topologymanager.Hint{}); err != nil || free(m) != "1024/1024 3072/1024" || m.Nodes(p.UID, "c") != "0" {
		t.Errorf("after a restart %s, %v", free(m), err)
	}
}

// TestRestore: what is not as it was is refused.
func TestRestore(t *testing.T) {
	dir := t.TempDir()
	p := guaranteed("p", "c=4Gi")
	if err := allocate(manager(t, dir, 2), p, topologymanager.Hint{}); err != nil {
		t.Fatal(err)
	}
	again := func(change func(*Config)) string {
		c := machine(2)
		c.Dir = dir
		change(&c)
		if _, err := New(c); err != nil {
			return err.Error()
		}
		return ""
	}
	for _, c := range []struct {
		name, want string
		change     func(*Config)
	}{
		{"nothing", "", func(*Config) {}},
		{"memory", "the expected machine state is different from the real one", func(c *Config) { c.Nodes[1].Memory += gib }},
		{"reservation", "the expected machine state is different from the real one", func(c *Config) { c.Reserved[0][corev1.ResourceMemory] += mib }},
		{"huge pages", "the expected machine state is different from the real one", func(c *Config) { c.Nodes[0].HugePages["hugepages-2Mi"] = 0 }},
		{"nodes", "(pod: uid-p, container: c) the memory assignment uses the NUMA that does not exist", func(c *Config) { c.Nodes = c.Nodes[:1] }},
		{"policy", `could not restore state from checkpoint: [memorymanager] configured policy "None" differs from state checkpoint policy "Static"`, func(c *Config) { c.Policy = None }},
		{"no reservation", "[memorymanager] you should specify the system reserved memory", func(c *Config) { c.Reserved = nil }},
	} {
		if got := again(c.change); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("another %s: %q", c.name, got)
		}
	}
	if m := manager(t, dir, 2); m.Prune(map[types.UID]bool{p.UID: true}) != nil || m.Nodes(p.UID, "c") != "0,1" || len(m.Blocks(p.UID, "c")) != 1 {
		t.Error("a pod that is still there lost its memory")
	}
	if err := os.WriteFile(filepath.Join(dir, state.Name), []byte(`{"policyName":"Static","machineState":{"0":null}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := again(func(*Config) {}); !strings.Contains(got, "checkpoint is corrupted") {
		t.Errorf("a file without a machine: %q", got)
	}
}

func TestReserved(t *testing.T) {
	nodes := machine(2).Nodes
	of := func(node int32, limits ...string) kubeletconfig.MemoryReservation {
		l := corev1.ResourceList{}
		for i := 0; i < len(limits); i += 2 {
			l[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+1])
		}
		return kubeletconfig.MemoryReservation{NumaNode: node, Limits: l}
	}
	whole := corev1.ResourceList{"memory": resource.MustParse("1100Mi"), "cpu": resource.MustParse("1")}
	for _, c := range []struct {
		settings []kubeletconfig.MemoryReservation
		want     string
	}{
		{[]kubeletconfig.MemoryReservation{of(0, "memory", "1Gi"), of(1, "memory", "76Mi")}, ""},
		{[]kubeletconfig.MemoryReservation{of(0, "memory", "1Gi")}, `the total amount "1Gi" of type "memory" is not equal to the value "1100Mi" determined by Node Allocatable feature`},
		{nil, `the total amount "0" of type "memory" is not equal to the value "1100Mi" determined by Node Allocatable feature`},
		{[]kubeletconfig.MemoryReservation{of(2, "memory", "1100Mi")}, "the reserved memory configuration references a NUMA node 2 that does not exist on this machine"},
		{[]kubeletconfig.MemoryReservation{of(0, "memory", "1100Mi", "hugepages-2Mi", "2Mi")}, `the total amount "2Mi" of type "hugepages-2Mi" is not equal to the value "0" determined by Node Allocatable feature`},
	} {
		got := ""
		if _, err := ReservedBy(c.settings, whole, nodes); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%v: %q, want %q", c.settings, got, c.want)
		}
	}
}

func TestReadNodes(t *testing.T) {
	root := podtest.CPUs(t, 8, 2)
	podtest.Memory(t, root, 2, 4, 512)
	got, err := ReadNodes(root, 0, nil)
	if err != nil || !reflect.DeepEqual(got, machine(2).Nodes) {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = ReadNodes(t.TempDir(), 4*gib, map[string]int64{"2Mi": gib})
	if err != nil || !reflect.DeepEqual(got, machine(1).Nodes) {
		t.Errorf("without NUMA: %+v, %v", got, err)
	}
}
