package footprint

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercentFor(t *testing.T) {
	for _, c := range []struct {
		since           time.Duration
		allocated, live uint64
		want            int
	}{
		{0, Room, Room, busyPercent},
		{apart / 4, Room, spare, busyPercent},
		{apart, Room * 3 / 4, Room, 75},
		{apart * 2, Room, Room, idlePercent},
		{busy - 1, Room, spare, idlePercent},
		{0, Room, 2 * spare, (busyPercent + idlePercent) / 2},
		{0, Room, 100 * spare, idlePercent},
		{0, Room, Room / 2, 200},
		{0, 1, 0, 400},
		{apart, 0, 0, idlePercent},
		{busy, 100 * Room, Room, idlePercent},
		{time.Minute, 0, 0, idlePercent},
	} {
		if got := percentFor(c.since, c.allocated, c.live, Room); got != c.want {
			t.Errorf("%d bytes in %v, %d alive: %d, want %d", c.allocated, c.since, c.live, got, c.want)
		}
	}
	for _, name := range []string{"/gc/heap/live:bytes", "/gc/heap/allocs:bytes"} {
		if read(name, 0) == 0 {
			t.Errorf("%s says nothing", name)
		}
	}
}

// Collections close together turn the real collector to the busy percentage.
func TestPaceSeesCollections(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	p := &pacer{room: Room, release: func() { _, _ = Trim() }, percent: 1, last: time.Now()}
	seen := make(chan struct{})
	runtime.AddCleanup(new([64]byte), func(c chan struct{}) { p.collected(); close(c) }, seen)
	runtime.GC()
	select {
	case <-seen:
	case <-time.After(10 * time.Second):
		t.Fatal("the collection was not seen")
	}
	if p.percent < busyPercent {
		t.Errorf("percentage %d", p.percent)
	}
	if p.calm == nil {
		t.Error("nothing will notice that no other follows")
	}
	percent := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.percent
	}
	p.mu.Lock()
	p.last = p.last.Add(-busy) // as long as idle comes after it
	p.mu.Unlock()
	resident := fileResident(t)
	if p.idle(); percent() != idlePercent {
		t.Errorf("percentage %d of an idle process", percent())
	}
	if after := fileResident(t); after >= resident {
		t.Errorf("%d kB of the program are resident once it is calm, %d before", after, resident)
	}
	at := p.trimmed
	if p.idle(); p.trimmed != at {
		t.Error("it is trimmed again at once")
	}
}
