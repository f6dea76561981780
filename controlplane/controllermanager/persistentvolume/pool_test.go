package persistentvolume

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/cache"
)

// A volume that becomes free is for one claim that waits: the one that asks for
// the most of what it has, then the others one by one.
func TestNominate(t *testing.T) {
	w := parse(t, `
		pvc a 1Gi Pending
		pvc b 3Gi Pending
		pvc c 5Gi Pending
		pvc d 4Gi Pending modes=RWX
		pvc e 4Gi Pending class=gold
		pvc f 4Gi Pending select=x
		pv v 4Gi Available
		pv w 4Gi Available modes=RWO,RWX label=x
		pv taken 9Gi Available claim=z`)
	p := newPool()
	for _, c := range w.claims {
		p.wait(c)
	}
	for _, tt := range []struct{ volume, want string }{
		{"v", "b"}, {"v", "a"}, {"v", ""}, {"taken", ""}, {"w", "f"}, {"w", "d"}, {"w", ""},
	} {
		if got, ok := p.nominate(w.volumes[tt.volume]); got.Name != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: %q, want %q", tt.volume, got.Name, tt.want)
		}
	}
	if len(p.waiting) != 2 || p.waiting[cache.ObjectName{Namespace: "default", Name: "c"}] == nil {
		t.Errorf("waiting %v", p.waiting)
	}
}

// An older revision changes nothing, and nothing is left of what was removed.
func TestPool(t *testing.T) {
	w := parse(t, "pv v 4Gi Available\npv r 1Gi Available claim=c")
	p := newPool()
	for _, v := range w.volumes {
		p.set(v)
	}
	bound := w.volumes["v"].DeepCopy()
	bound.ResourceVersion, bound.Status.Phase = "2", corev1.VolumeBound
	bound.Spec.ClaimRef = w.volumes["r"].Spec.ClaimRef
	p.set(bound)
	p.set(w.volumes["v"])
	if p.volumes["v"] != bound || len(p.free) != 0 {
		t.Errorf("volume %v, free %v", p.volumes["v"], p.free)
	}
	p.remove("v")
	p.remove("r")
	if len(p.volumes)+len(p.claimed)+len(p.free) != 0 {
		t.Errorf("left %+v", p)
	}
}

// BenchmarkPool binds the last of many claims among as many volumes.
func BenchmarkPool(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPool()
			for i := range n {
				v := split(fmt.Sprintf("pv v%d 1Gi Available", i)).volume()
				v.Spec.Capacity[corev1.ResourceStorage] = *resource.NewQuantity(int64(1+i), resource.BinarySI)
				p.set(v)
				c := split(fmt.Sprintf("pvc c%d 1Gi Pending", i)).claim()
				c.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(int64(1+i), resource.BinarySI)
				p.wait(c)
			}
			c := split("pvc c 1Gi Pending").claim()
			c.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(int64(n/2), resource.BinarySI)
			for b.Loop() {
				v, err := p.find(c, false)
				if err != nil || v == nil {
					b.Fatal(v, err)
				}
				waits := p.waiting[cache.ObjectName{Namespace: "default", Name: fmt.Sprint("c", n/2-1)}]
				if _, ok := p.nominate(v); !ok {
					b.Fatal("no claim")
				}
				p.wait(waits)
			}
		})
	}
}
