package preemption

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
)

func pod(name, cpu, memory string, limited bool) *corev1.Pod {
	p := podtest.Pod(name, "c")
	if cpu != "" || memory != "" {
		p.Spec.Containers[0].Resources = podtest.Resources(cpu, memory, "", "")
		if limited {
			p.Spec.Containers[0].Resources = podtest.Resources(cpu, memory, cpu, memory)
		}
	}
	return p
}

func TestVictims(t *testing.T) {
	best, small, large := pod("best", "", "", false), pod("small", "100m", "100Mi", false), pod("large", "300m", "300Mi", false)
	sure, bigger := pod("sure", "300m", "300Mi", true), pod("bigger", "500m", "500Mi", true)
	all := []*corev1.Pod{best, small, large, sure, bigger}
	cpu := func(n int64) Requirement { return Requirement{corev1.ResourceCPU, n} }
	memory := func(n int64) Requirement { return Requirement{corev1.ResourceMemory, n << 20} }
	for _, c := range []struct {
		name    string
		missing []Requirement
		want    string
	}{
		{"nothing", nil, ""},
		{"one place", []Requirement{{corev1.ResourcePods, 1}}, "best"},
		{"a little", []Requirement{cpu(50)}, "small"},
		{"as few as can be", []Requirement{cpu(250), memory(200)}, "large"},
		{"two of a class", []Requirement{cpu(350)}, "large small"},
		{"the class above", []Requirement{cpu(600)}, "large sure"},
		{"all", []Requirement{cpu(1200)}, "large small bigger sure"},
	} {
		got, err := Victims(all, c.missing, func(*corev1.Pod) bool { return true })
		var names []string
		for _, p := range got {
			names = append(names, p.Name)
		}
		if err != nil || strings.Join(names, " ") != c.want {
			t.Errorf("%s: %v, %v; want %s", c.name, names, err, c.want)
		}
	}
	_, err := Victims(all, []Requirement{cpu(1300)}, func(*corev1.Pod) bool { return true })
	if err == nil || err.Error() != "no set of running pods found to reclaim resources: [(res: cpu, q: 100), ]" {
		t.Error(err)
	}
	if _, err := Victims(all, []Requirement{cpu(1)}, func(p *corev1.Pod) bool { return p.Name == "best" }); err == nil {
		t.Error("pods that come first go")
	}
}
