package deviceplugin

import (
	"fmt"
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"knarr/node/kubelet/podtest"
)

// TestLack: a pod for which there are too few devices is told so before a plugin is asked, by
// what others have and are promised; what the Node shows is raised by as much.
func TestLack(t *testing.T) {
	wanting := func(p *corev1.Pod, counts ...int64) *corev1.Pod {
		want := func(c *corev1.Container) {
			q := *resource.NewQuantity(counts[0], resource.DecimalSI)
			c.Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{"r": q}, Limits: corev1.ResourceList{"r": q}}
			counts = counts[1:]
		}
		for i := range p.Spec.InitContainers {
			want(&p.Spec.InitContainers[i])
		}
		for i := range p.Spec.Containers {
			want(&p.Spec.Containers[i])
		}
		return p
	}
	short := func(container string, requested, available int64) string {
		return fmt.Sprintf("%s: requested number of devices unavailable for r. Requested: %d, Available: %d", container, requested, available)
	}
	has := wanting(podtest.Pod("has", "c"), 2) // of the four devices
	all := map[types.UID]bool{has.UID: true}
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		others []*corev1.Pod
		active map[types.UID]bool
		sick   string // a device
		want   string
		room   int64 // shown where the Node shows one
	}{
		{name: "nothing wanted", pod: podtest.Pod("p", "c"), room: 1},
		{name: "what is left", pod: wanting(podtest.Pod("p", "a", "b"), 1, 1), others: []*corev1.Pod{has}, room: 4},
		{name: "the second container", pod: wanting(podtest.Pod("p", "a", "b"), 1, 2), others: []*corev1.Pod{has}, want: short("b", 2, 1), room: 5},
		{name: "promised", pod: wanting(podtest.Pod("p", "c"), 1), others: []*corev1.Pod{has, wanting(podtest.Pod("o", "c"), 2)}, want: short("c", 1, 0), room: 5},
		{name: "of one that has ended", pod: wanting(podtest.Pod("p", "c"), 3), active: map[types.UID]bool{}, room: 3},
		{name: "who has ended is not known", pod: wanting(podtest.Pod("p", "c"), 3), want: short("c", 3, 2), room: 5},
		{name: "one is sick that another has", pod: wanting(podtest.Pod("p", "c"), 2), others: []*corev1.Pod{has}, sick: "a", room: 4},
		{name: "one is sick that was free", pod: wanting(podtest.Pod("p", "c"), 2), others: []*corev1.Pod{has}, sick: "d", want: short("c", 2, 1), room: 4},
		{name: "an init container's again", pod: wanting(podtest.WithInit(podtest.Pod("p", "c"), "i"), 2, 2), others: []*corev1.Pod{has}, room: 4},
		{name: "not a sidecar's", pod: wanting(podtest.WithInit(podtest.Pod("p", "c"), "s"), 1, 2), others: []*corev1.Pod{has}, want: short("c", 2, 1), room: 5},
		{name: "beyond measure", pod: wanting(podtest.Pod("p", "a", "b"), 1, 1), want: short("a", 1, 0), room: 4 + 2*countless,
			others: []*corev1.Pod{has, wanting(podtest.Pod("o", "x", "y"), math.MaxInt64, math.MaxInt64)}},
	} {
		m := New(Config{RootDir: t.TempDir()})
		p := newPlugin("r")
		for _, id := range []string{"a", "b", "c", "d"} {
			health := pluginapi.Healthy
			if id == c.sick {
				health = pluginapi.Unhealthy
			}
			p.devices[id] = &pluginapi.Device{ID: id, Health: health}
		}
		m.plugins["r"] = p
		m.put(has.UID, "c", "r", &allocation{devices: map[string][]int64{"a": nil, "b": nil}})
		active := c.active
		if active == nil && c.name != "who has ended is not known" {
			active = all
		}
		container, err := m.Lack(c.pod, c.others, active)
		got := ""
		if err != nil {
			got = container + ": " + err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
		shown := m.Room(c.pod, c.others, corev1.ResourceList{"r": resource.MustParse("1")})
		if q := shown["r"]; q.Value() != c.room {
			t.Errorf("%s: room for %d, want %d", c.name, q.Value(), c.room)
		}
	}
	m := New(Config{RootDir: t.TempDir()})
	m.plugins["r"] = newPlugin("r")
	m.put("back", "c", "r", &allocation{devices: map[string][]int64{"a": nil}})
	back := wanting(podtest.Pod("p", "c"), 1)
	back.UID = "back"
	if _, err := m.Lack(back, nil, nil); err != nil {
		t.Errorf("one that has its device, after a restart: %v", err)
	}
	if _, err := m.Lack(back, nil, map[types.UID]bool{"back": true}); err == nil {
		t.Error("one whose device is not there any more has it")
	}
	if _, err := m.Lack(has, nil, nil); err == nil || err.Error() != "no healthy devices present; cannot allocate unhealthy devices r" {
		t.Errorf("without devices: %v", err)
	}
}
