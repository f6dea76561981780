package watchcache

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestPause(t *testing.T) {
	for _, c := range []struct {
		watchers int
		since    time.Duration
		want     time.Duration
	}{
		{alone - 1, 0, 0},
		{100, 0, 100 * turn},
		{100, 60 * turn, 40 * turn},
		{100, time.Second, 100*turn - time.Second},
		{1 << 20, 0, longestGather},
	} {
		if got := pause(c.watchers, c.since); got != c.want {
			t.Errorf("%d watchers, after %v: %v, want %v", c.watchers, c.since, got, c.want)
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
		for range 5 {
			g.wake()
		}
		time.Sleep(100*turn - 1)
		if synctest.Wait(); woken() {
			t.Fatal("an event soon after another does not wait")
		}
		time.Sleep(1)
		if synctest.Wait(); !woken() {
			t.Fatal("events are forgotten")
		}
		g.wake()
		time.Sleep(100 * turn)
		if synctest.Wait(); !woken() {
			t.Fatal("the last event is forgotten")
		}
		time.Sleep(time.Second)
		if g.wake(); !woken() {
			t.Fatal("an event after a pause waits")
		}
	})
}
