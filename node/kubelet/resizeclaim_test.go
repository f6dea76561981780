package kubelet

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"knarr/node/kubelet/podtest"
)

// TestResizeClaimBehind: room that came free is left to whoever goes first, as long as
// that one fits there, and to nobody else.
func TestResizeClaimBehind(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("10"),
	}}}
	pod := func(name, request string, change func(*corev1.Pod)) *corev1.Pod {
		p := cpus(podtest.Pod(name, "c"), request)
		p.UID = types.UID(name)
		if change != nil {
			change(p)
		}
		return p
	}
	important := func(p *corev1.Pod) { p.Spec.Priority = new(int32(1000)) }
	guaranteed := func(p *corev1.Pod) {
		r := &p.Spec.Containers[0].Resources
		r.Requests[corev1.ResourceMemory] = resource.MustParse("100Mi")
		r.Limits = r.Requests
	}
	for _, c := range []struct {
		name   string
		first  string
		change func(*corev1.Pod)
		later  time.Duration
		fits   bool
	}{
		{"asked earlier", "1300m", nil, 0, false},
		{"asked later", "1300m", nil, 2 * time.Second, true},
		{"of higher priority, asked later", "1300m", important, 2 * time.Second, false},
		{"guaranteed, asked later", "1300m", guaranteed, 2 * time.Second, false},
		{"of higher priority, for which there is no room", "1900m", important, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Unix(0, 0)
			first := &resizeClaim{pod("first", c.first, c.change), start.Add(c.later)}
			mine := &resizeClaim{pod("mine", "1300m", nil), start.Add(time.Second)}
			others := []*corev1.Pod{pod("third", "100m", nil), pod("first", "100m", c.change)}
			got := admitResources(mine.pod, mine.behind(pod("mine", "100m", nil), others, []*resizeClaim{first}, node), node)
			if (got == nil) != c.fits {
				t.Errorf("fits: %v; %+v", got == nil, got)
			}
			if cpu := others[1].Spec.Containers[0].Resources.Requests.Cpu().String(); cpu != "100m" {
				t.Errorf("the other pod itself was changed: %s", cpu)
			}
		})
	}
}
