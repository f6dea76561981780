package kubelet

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"knarr/internal/run"
)

// TestPanicsOfAWorker: each panic of a pod's worker is counted, where an alert can see it, and
// its stack is in the log once in ten minutes.
func TestPanicsOfAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Kubelet{metrics: newMetrics()}
		w := &worker{k: k, uid: "u"} // without a pod
		const name = "kubelet: pod worker"
		before := run.Panics()[name]
		text := logged(t, func() {
			for range 30 {
				if again := w.guarded(t.Context()); again != 10*time.Second {
					t.Fatalf("looked at again after %v", again)
				}
				time.Sleep(10 * time.Second)
			}
		})
		if n := run.Panics()[name] - before; n != 30 {
			t.Errorf("%d panics are counted, want 30", n)
		}
		if n := strings.Count(text, "stack="); n != 1 {
			t.Errorf("%d stacks in the log, want one", n)
		}
		cancelled := false
		o := &op{key: opKey{of: "o"}, apply: func() { panic("of what an operation came to") }, cancel: func() { cancelled = true }}
		w.ops = map[opKey]*op{o.key: o}
		if text = logged(t, func() { w.collect(o) }); !strings.Contains(text, "came to") || !cancelled || w.busy(o.key) {
			t.Errorf("cancelled: %t, busy: %t, log: %s", cancelled, w.busy(o.key), text)
		}
	})
}
