package watchcache

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestPause(t *testing.T) {
	for _, c := range []struct {
		watchers, carried int
		want              time.Duration
	}{
		{alone - 1, 100, 0},
		{100, 1, 100 * turn},
		{100, dense, 200 * turn},
		{1 << 20, 1, longestGather},
	} {
		if got := pause(c.watchers, c.carried); got != c.want {
			t.Errorf("%d watchers, %d events: %v, want %v", c.watchers, c.carried, got, c.want)
		}
	}
}

// Many watchers are woken once for events that come together, and the last of
// them is not forgotten.
func TestGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup("")
		var first *Watcher
		for range 100 {
			first = &Watcher{c: make(chan struct{}, 1)}
			g.add(first)
		}
		woken := func() bool {
			select {
			case <-first.c:
				return true
			default:
				return false
			}
		}
		if g.wake(); !woken() {
			t.Fatal("the first event waits")
		}
		wakes := func(after time.Duration) {
			t.Helper()
			time.Sleep(after - time.Nanosecond)
			if synctest.Wait(); woken() {
				t.Fatal("an event soon after another does not wait")
			}
			time.Sleep(time.Nanosecond)
			if synctest.Wait(); !woken() {
				t.Fatal("events are forgotten")
			}
		}
		for range dense {
			g.wake()
		}
		wakes(100 * turn)
		g.wake()
		wakes(200 * turn)
		g.wake()
		wakes(100 * turn)
		time.Sleep(time.Second)
		if g.wake(); !woken() {
			t.Fatal("an event after a pause waits")
		}
	})
}
