package kubelet

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
)

// TestPullSlots: pulls of one namespace that do not end leave those of others their slots, and
// who waits is served when one ends.
func TestPullSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slots pullSlots
		over, cancel := context.WithCancel(t.Context())
		cancel()
		now := func(namespace string) (func(), bool) {
			back, err := slots.take(over, namespace)
			return back, err == nil
		}
		var backs []func()
		for i := range maxPullsOf {
			back, ok := now("a")
			if !ok {
				t.Fatalf("pull %d waits", i)
			}
			backs = append(backs, back)
		}
		if _, ok := now("a"); ok {
			t.Error("a namespace has more than its slots")
		}
		for i := range maxPulls - maxPullsOf - keptPulls {
			if _, ok := now(fmt.Sprint("b", i%4)); !ok {
				t.Fatalf("pull %d of others waits", i)
			}
		}
		if _, ok := now("b0"); ok {
			t.Error("a namespace that has slots takes one that is kept")
		}
		for i := range keptPulls {
			if _, ok := now(fmt.Sprint("c", i)); !ok {
				t.Fatalf("pull %d of one that has none waits", i)
			}
		}
		if _, ok := now("d"); ok {
			t.Error("there are more than all")
		}
		served := false
		go func() {
			if back, err := slots.take(t.Context(), "d"); err == nil {
				served = true
				back()
				back() // twice counts once
			}
		}()
		synctest.Wait()
		if served {
			t.Error("served before one has ended")
		}
		backs[0]()
		synctest.Wait()
		if !served {
			t.Error("not served when one has ended")
		}
		if slots.all != maxPulls-1 || slots.of["a"] != maxPullsOf-1 || slots.of["d"] != 0 {
			t.Errorf("%d slots are taken, %v", slots.all, slots.of)
		}
	})
}
