package resourcequota

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/cache"
)

// TestWait: a count waits for the last charge to settle, and not for ever.
func TestWait(t *testing.T) {
	c, key, start := charges{of: map[cache.ObjectName]charge{}}, cache.NewObjectName("n", "q"), time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	if d := c.wait(key, start); d != 0 {
		t.Errorf("nothing was charged: %v", d)
	}
	c.note(key, start)
	if d := c.wait(key, at(settled/4)); d != settled*3/4 {
		t.Errorf("charged a moment ago: %v", d)
	}
	for d := time.Duration(0); d < longest; d += settled / 2 {
		c.note(key, at(d))
	}
	if d := c.wait(key, at(longest-settled/4)); d != settled/4 {
		t.Errorf("charged all the time: %v", d)
	}
	if d := c.wait(key, at(longest)); d != 0 {
		t.Errorf("charged for longer than a count waits: %v", d)
	}
	c.note(key, at(longest))
	if d := c.wait(key, at(longest)); d != settled {
		t.Errorf("charged after a count: %v", d)
	}
	c.forget(key)
	if d := c.wait(key, at(longest)); d != 0 {
		t.Errorf("the quota is gone: %v", d)
	}
}

func TestAtLeast(t *testing.T) {
	n := func(pods, services string) corev1.ResourceList {
		return corev1.ResourceList{"pods": resource.MustParse(pods), "services": resource.MustParse(services)}
	}
	most, lowered := atLeast(n("1", "5"), n("2", "3"))
	if pods, services := most["pods"], most["services"]; !lowered || pods.Value() != 2 || services.Value() != 5 {
		t.Errorf("%v, %v", most, lowered)
	}
	if _, lowered := atLeast(n("2", "5"), corev1.ResourceList{"secrets": resource.MustParse("9")}); lowered {
		t.Error("what is not counted is not lowered")
	}
}
