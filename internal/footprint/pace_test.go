package footprint

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercentFollowsTheTimeBetweenCollections(t *testing.T) {
	for since, want := range map[time.Duration]int{0: busyPercent, busy - 1: busyPercent, busy: idlePercent, time.Minute: idlePercent} {
		if got := percentFor(since); got != want {
			t.Errorf("%v: %d, want %d", since, got, want)
		}
	}
}

// Collections close together turn the real collector to the busy percentage.
func TestPaceSeesCollections(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	p := &pacer{percent: 1, last: time.Now()}
	seen := make(chan struct{})
	runtime.AddCleanup(new([64]byte), func(c chan struct{}) { p.collected(); close(c) }, seen)
	runtime.GC()
	select {
	case <-seen:
	case <-time.After(10 * time.Second):
		t.Fatal("the collection was not seen")
	}
	if p.percent != busyPercent {
		t.Errorf("percentage %d", p.percent)
	}
}
