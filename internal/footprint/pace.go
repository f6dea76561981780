package footprint

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"knarr/internal/run"
)

const (
	// idlePercent keeps an idle cluster small.
	idlePercent = 50
	// busyPercent spares a busy one a third of the collector's work.
	busyPercent = 100
	// room is what a busy process may allocate at least between two collections:
	// while little is alive, they would otherwise follow each other at once.
	room = 64 << 20
	// spare is what a busy heap may grow by at the busy percentage; beyond it, by
	// that of an idle one: a load of huge requests is not to be doubled.
	spare = 128 << 20
	// busy is how soon after another a collection is a sign of load.
	busy = 2 * time.Second
	// trimAgain is the least time between two of Trim: what it takes away is faulted in
	// again by the next load.
	trimAgain = time.Minute
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
	mu      sync.Mutex
	percent int
	last    time.Time
	calm    *time.Timer // after a busy collection, until no other has followed
	trimmed time.Time
}

// arm has collected called after the next collection.
func (p *pacer) arm() { runtime.AddCleanup(new([64]byte), (*pacer).collected, p) }

func (p *pacer) collected() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	want := percentFor(now.Sub(p.last), live())
	p.last = now
	p.set(want)
	switch {
	case want == idlePercent:
	case p.calm == nil:
		p.calm = run.AfterFunc("memory: idle", busy, p.idle)
	default:
		p.calm.Reset(busy)
	}
	p.arm()
}

// idle takes the room back once nothing happens: else garbage of the last load
// would stay until as much has been allocated again. What a load took goes back to
// the kernel, for what is alive of it at its last collection mostly is not any
// longer, and with it the parts of the program that only the load ran.
func (p *pacer) idle() {
	p.mu.Lock()
	p.set(idlePercent)
	wait := trimAgain - time.Since(p.trimmed)
	if wait <= 0 {
		p.trimmed = time.Now()
	} else if p.calm != nil {
		p.calm.Reset(wait)
	}
	p.mu.Unlock()
	if wait <= 0 {
		_, _ = Trim() // what it cannot give back stays
	}
}

func (p *pacer) set(percent int) {
	if percent != p.percent {
		p.percent = percent
		debug.SetGCPercent(percent)
	}
}

// percentFor is how much the heap may grow, in percent of what is alive.
func percentFor(sinceLast time.Duration, live uint64) int {
	if sinceLast >= busy {
		return idlePercent
	}
	if live > spare {
		return int((spare*busyPercent + (live-spare)*idlePercent) / live)
	}
	return max(busyPercent, int(room*100/max(live, room/4)))
}

// live is how many bytes of the heap the last collection found in use.
func live() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return room
	}
	return s[0].Value.Uint64()
}
