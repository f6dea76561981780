package criconfig

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/volume"
)

func TestShares(t *testing.T) {
	for milli, want := range map[int64]int64{0: 2, 1: 2, 100: 102, 1000: 1024, 1 << 30: 262144} {
		if got := CPUShares(milli); got != want {
			t.Errorf("%dm: %d shares, want %d", milli, got, want)
		}
	}
	if got := CPUQuota(1, CPUPeriod); got != 1000 {
		t.Errorf("quota of 1m: %d", got)
	}
}

// TestHugepages: sizes that nobody names are not to be had, those that only the pod names
// are for all of its containers.
func TestHugepages(t *testing.T) {
	pod := podtest.Pod("p", "names", "shares")
	pod.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}}
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"hugepages-2Mi": resource.MustParse("2Mi"), "hugepages-64Ki": resource.MustParse("64Ki")}
	n := Node{HugepageSizes: HugepageSizes(corev1.ResourceList{"hugepages-2Mi": {}, "hugepages-1Gi": {}, "cpu": {}})}
	for i, want := range []uint64{2 << 20, 4 << 20} {
		got := n.ContainerResources(pod, &pod.Spec.Containers[i]).HugepageLimits
		if len(got) != 2 || got[0].PageSize != "1GB" || got[0].Limit != 0 || got[1].PageSize != "2MB" || got[1].Limit != want {
			t.Errorf("container %d: %v", i, got)
		}
	}
}

func TestHugepageSize(t *testing.T) {
	for name, want := range map[corev1.ResourceName]string{"hugepages-2Mi": "2MB", "hugepages-1Gi": "1GB", "cpu": ""} {
		if got, _ := hugepageSize(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestExclusiveCPUs: who has CPUs for itself has no quota, nor has the pod that it is in.
func TestExclusiveCPUs(t *testing.T) {
	pod := podtest.Pod("p", "own", "shares")
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Resources = podtest.Resources("2", "1Gi", "2", "1Gi")
	}
	own := func(uid types.UID, name string) bool { return uid == pod.UID && name == "own" }
	for name, c := range map[string]struct {
		node                   Node
		group, exclusive, both int64
	}{
		"none":     {Node{}, 400000, 200000, 200000},
		"one":      {Node{ExclusiveCPUs: own}, -1, -1, 200000},
		"no quota": {Node{ExclusiveCPUs: own, NoCPUQuota: true}, 0, 0, 0},
	} {
		if got := c.node.PodResources(pod).CpuQuota; got != c.group {
			t.Errorf("%s: the pod has a quota of %d, want %d", name, got, c.group)
		}
		for i, want := range []int64{c.exclusive, c.both} {
			if got := c.node.ContainerResources(pod, &pod.Spec.Containers[i]).CpuQuota; got != want {
				t.Errorf("%s: container %d has a quota of %d, want %d", name, i, got, want)
			}
		}
	}
}

// TestSandboxResources: the overhead of a pod is beside what its containers have, once.
func TestSandboxResources(t *testing.T) {
	pod := podtest.Pod("p", "limited", "free")
	pod.Spec.Containers[0].Resources = podtest.Resources("1", "1Gi", "2", "2Gi")
	pod.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("64Mi")}
	cfg, _, err := Sandbox(Node{ResolvConf: func() (string, error) { return "", nil }}, pod, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := cfg.Linux.Resources; r.CpuShares != 1024 || r.CpuQuota != 200000 || r.MemoryLimitInBytes != 2<<30 {
		t.Errorf("resources %v", r)
	}
	if o := cfg.Linux.Overhead; o.CpuShares != 256 || o.CpuQuota != 25000 || o.MemoryLimitInBytes != 64<<20 {
		t.Errorf("overhead %v", o)
	}
}

// TestGroupsOfVolumes: programs are in the groups that the pod's volumes name, each once.
func TestGroupsOfVolumes(t *testing.T) {
	pod := podtest.Pod("p", "c")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(5)), SupplementalGroups: []int64{7}}
	in := Inputs{Pod: pod, Spec: &pod.Spec.Containers[0], Image: &cri.Image{}, Volumes: map[string]volume.Mounted{
		"a": {Group: new(int64(9))}, "b": {Group: new(int64(7))}, "c": {}, "d": {Group: new(int64(8))},
	}}
	l, err := linuxConfig(Node{}, in)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.SecurityContext.SupplementalGroups, []int64{5, 7, 9, 8}; !slices.Equal(got, want) {
		t.Errorf("groups %v, want %v", got, want)
	}
	if got := pod.Spec.SecurityContext.SupplementalGroups; !slices.Equal(got, []int64{7}) {
		t.Errorf("the pod's own are %v now", got)
	}
}
