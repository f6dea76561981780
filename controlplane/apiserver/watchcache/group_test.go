package watchcache

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestPause(t *testing.T) {
	for _, c := range []struct {
		watchers, lastBatch int
		want                time.Duration
	}{
		{fewWatchers - 1, 100, 0},
		{100, 1, 100 * writeCost},
		{100, burstSize, 200 * writeCost},
		{1 << 20, 1, longestDelay},
	} {
		if got := coalesceDelay(c.watchers, c.lastBatch); got != c.want {
			t.Errorf("%d watchers, %d events: %v, want %v", c.watchers, c.lastBatch, got, c.want)
		}
	}
}

// Many watchers are woken once for events that come together, and the last of
// them is not forgotten.
func TestCoalesceDelay(t *testing.T) {
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
		for range burstSize {
			g.wake()
		}
		wakes(100 * writeCost)
		g.wake()
		wakes(200 * writeCost)
		g.wake()
		wakes(100 * writeCost)
		time.Sleep(time.Second)
		if g.wake(); !woken() {
			t.Fatal("an event after a pause waits")
		}
	})
}
