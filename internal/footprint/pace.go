package footprint

import (
	"runtime"
	"runtime/debug"
	"time"
)

const (
	// idlePercent keeps an idle cluster small.
	idlePercent = 50
	// busyPercent spares a busy one a third of the collector's work.
	busyPercent = 100
	// busy is how soon after another a collection tells of load.
	busy = 2 * time.Second
)

// Pace keeps the garbage collector frugal with memory while little happens, and
// with CPU while much does. Each collection decides for the next; an idle
// process has one every two minutes.
func Pace() {
	debug.SetGCPercent(idlePercent)
	p := &pacer{percent: idlePercent, last: time.Now()}
	p.arm()
}

type pacer struct {
	percent int
	last    time.Time
}

// arm has collected called after the next collection.
func (p *pacer) arm() { runtime.AddCleanup(new([64]byte), (*pacer).collected, p) }

func (p *pacer) collected() {
	now := time.Now()
	want := percentFor(now.Sub(p.last))
	p.last = now
	if want != p.percent {
		p.percent = want
		debug.SetGCPercent(want)
	}
	p.arm()
}

func percentFor(sinceLast time.Duration) int {
	if sinceLast < busy {
		return busyPercent
	}
	return idlePercent
}
