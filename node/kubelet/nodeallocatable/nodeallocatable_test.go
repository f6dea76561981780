package nodeallocatable

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/podtest"
)

func config(s configuration.Settings) Config {
	return Config{Parent: "/kubepods", Settings: &s, Capacity: corev1.ResourceList{
		"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pid": resource.MustParse("1000"), "hugepages-2Mi": resource.MustParse("1Gi")}}
}

func TestGroups(t *testing.T) {
	system, kube := map[string]string{"cpu": "500m", "memory": "1Gi", "pid": "100"}, map[string]string{"cpu": "500m", "memory": "1Gi"}
	for name, c := range map[string]struct {
		settings configuration.Settings
		want     []cgroup.Limits
	}{
		"not limited":  {configuration.Settings{SystemReserved: system, EnforceNodeAllocatable: []string{"none"}}, []cgroup.Limits{{CPUShares: 4096, Memory: 8 << 30, Pids: 1000}}},
		"by default":   {configuration.Settings{EnforceNodeAllocatable: []string{"pods"}}, []cgroup.Limits{{CPUShares: 4096, Memory: 8 << 30, Pids: 900}}},
		"pods":         {configuration.Settings{SystemReserved: system, KubeReserved: kube, EnforceNodeAllocatable: []string{"pods"}}, []cgroup.Limits{{CPUShares: 3072, Memory: 6 << 30, Pids: 900}}},
		"all":          {configuration.Settings{SystemReserved: system, KubeReserved: kube, EnforceNodeAllocatable: []string{"pods", "system-reserved", "kube-reserved"}, SystemReservedCgroup: "/system", KubeReservedCgroup: "/kube"}, []cgroup.Limits{{CPUShares: 3072, Memory: 6 << 30, Pids: 900}, {CPUShares: 512, Memory: 1 << 30, Pids: 100}, {CPUShares: 512, Memory: 1 << 30}}},
		"compressible": {configuration.Settings{SystemReserved: system, EnforceNodeAllocatable: []string{"pods", "system-reserved-compressible"}, SystemReservedCgroup: "/system"}, []cgroup.Limits{{CPUShares: 3584, Memory: 7 << 30, Pids: 900}, {CPUShares: 512}}},
	} {
		groups := config(c.settings).Groups()
		if len(groups) != len(c.want) {
			t.Errorf("%s: %+v", name, groups)
			continue
		}
		for i, g := range groups {
			if g.Limits != c.want[i] || g.Existing != (i > 0) {
				t.Errorf("%s: %+v, want %+v", name, g, c.want[i])
			}
		}
	}
}

// TestPodPIDs: no pod has those of all.
func TestPodPIDs(t *testing.T) {
	for _, c := range []struct {
		node, reserved string
		want           int64
	}{
		{"32768", "", 7373}, {"32768", "16768", 4000}, {"4194304", "", 943718}, {"3000", "", 1024}, {"1000", "", 900}, {"1000", "1000", -1}, {"0", "", -1},
	} {
		s := configuration.Settings{}
		if c.reserved != "" {
			s.KubeReserved = map[string]string{"pid": c.reserved}
		}
		if got := (Config{Settings: &s, Capacity: corev1.ResourceList{PIDs: resource.MustParse(c.node)}}).PodPIDs(); got != c.want {
			t.Errorf("of %s, %s of them reserved: %d, want %d", c.node, c.reserved, got, c.want)
		}
	}
}

// TestHugepages: pods get the node's, what is reserved only what is named for it.
func TestHugepages(t *testing.T) {
	c := config(configuration.Settings{
		SystemReserved: map[string]string{"memory": "1Gi"}, SystemReservedCgroup: "/system", KubeReservedCgroup: "/kube",
		EnforceNodeAllocatable: []string{"pods", "system-reserved", "kube-reserved-compressible"},
	})
	got := c.Groups()
	if got[0].Hugepages["2MB"] != 1<<30 || got[1].Hugepages == nil || len(got[1].Hugepages) != 0 || got[2].Hugepages != nil {
		t.Errorf("%+v", got)
	}
}

// TestSlices: by systemd's names, also what settings name.
func TestSlices(t *testing.T) {
	c := config(configuration.Settings{EnforceNodeAllocatable: []string{"pods", "system-reserved"}, SystemReservedCgroup: "/system.slice"})
	c.Parent = "/kubepods.slice"
	if groups := c.Groups(); groups[0].Path != "/kubepods.slice" || groups[1].Path != "/system.slice" {
		t.Errorf("%+v", groups)
	}
	if got := c.Classes(nil); got[0].Path != "/kubepods.slice/kubepods-burstable.slice" || got[1].Path != "/kubepods.slice/kubepods-besteffort.slice" {
		t.Errorf("%+v", got)
	}
}

func TestCheck(t *testing.T) {
	c := config(configuration.Settings{SystemReserved: map[string]string{"memory": "5Gi"}, KubeReserved: map[string]string{"memory": "3Gi"}})
	if err := c.Check(nil); err != nil {
		t.Error(err)
	}
	err := c.Check(corev1.ResourceList{"memory": resource.MustParse("100Mi")})
	if err == nil || err.Error() != `invalid Node Allocatable configuration. Resource "memory" has a reservation of 8292Mi but capacity of 8Gi. Expected capacity >= reservation.` {
		t.Error(err)
	}
}

func TestClasses(t *testing.T) {
	a, b, c := podtest.Pod("a", "c"), podtest.Pod("b", "c"), podtest.Pod("c", "c")
	a.Spec.Containers[0].Resources = podtest.Resources("250m", "", "", "")
	b.Spec.Containers[0].Resources = podtest.Resources("250m", "1Gi", "", "")
	got := config(configuration.Settings{}).Classes([]*corev1.Pod{a, b, c})
	if got[0].Path != "/kubepods/burstable" || got[0].Limits.CPUShares != 512 || got[1].Limits.CPUShares != 2 {
		t.Errorf("%+v", got)
	}
}

// TestKeptMemory: what pods ask for is kept for their class and for all of them, and what the
// system's parts may have for these; without the policy it is taken back.
func TestKeptMemory(t *testing.T) {
	guaranteed, burstable, other := podtest.Pod("a", "c"), podtest.Pod("b", "c"), podtest.Pod("c", "c")
	guaranteed.Spec.Containers[0].Resources = podtest.Resources("1", "1Gi", "1", "1Gi")
	burstable.Spec.Containers[0].Resources = podtest.Resources("1", "2Gi", "", "3Gi")
	pods := []*corev1.Pod{guaranteed, burstable, other}
	s := configuration.Settings{
		FeatureGates: map[string]bool{"MemoryQoS": true}, MemoryReservationPolicy: configuration.TieredReservation,
		EnforceNodeAllocatable: []string{"pods", "system-reserved"}, SystemReserved: map[string]string{"memory": "1Gi"}, SystemReservedCgroup: "/system",
	}
	got := config(s).Classes(pods)
	if len(got) != 3 || got[0].Limits.MemoryLow != 2<<30 || got[2].Path != "/kubepods" || got[2].Limits != (cgroup.Limits{MemoryMin: 3 << 30}) {
		t.Errorf("%+v", got)
	}
	if g := config(s).Groups(); g[0].Limits.MemoryMin != 0 || g[1].Limits.MemoryMin != 1<<30 {
		t.Errorf("%+v", g)
	}
	s.MemoryReservationPolicy = "None"
	if got := config(s).Classes(pods); got[0].Limits.MemoryLow != -1 || got[2].Limits.MemoryMin != -1 {
		t.Errorf("without the policy %+v", got)
	}
	s.FeatureGates = nil
	if got := config(s).Classes(pods); len(got) != 2 || got[0].Limits.MemoryLow != 0 {
		t.Errorf("without the feature %+v", got)
	}
}
