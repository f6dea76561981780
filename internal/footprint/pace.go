package footprint

import (
	"os"
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
	// Room is what a busy server or agent may allocate at least between two collections:
	// while little is alive, they would otherwise follow each other at once.
	Room = 64 << 20
	// startRoom is that in the first startTime of a process: much of what it allocates then
	// stays, and would lie everywhere in a larger heap.
	startRoom, startTime = 24 << 20, 3 * time.Second
	// spare is what a busy heap may grow by at the busy percentage; beyond it, by
	// that of an idle one: a load of huge requests is not to be doubled.
	spare = 128 << 20
	// busy is how soon after another a collection is a sign of load.
	busy = 2 * time.Second
	// apart is how much time there should be between collections under load. Less would
	// cost processor time, more would cost memory for good: what lives longer than the load
	// lies everywhere in the heap that it grew, and keeps it.
	apart = 500 * time.Millisecond
	// calm is how long after the last sign of load it is over: a start has loops that begin
	// seconds after it.
	calm = 5 * time.Second
	// trimAgain is the least time between two releases: what Trim takes away is faulted in
	// again by the next load.
	trimAgain = 20 * time.Second
	// trimsMost is how often it is done after a load, each time after twice the time: what
	// runs every minute only brings in much around what it needs.
	trimsMost = 4
)

// Pace keeps the garbage collector frugal with memory while little happens, and
// with CPU while much does. Each collection decides for the next; an idle
// process has one every two minutes. A busy one may allocate room, in bytes, between two
// of them at least; release gives memory back after a load, to the kernel. It does nothing
// where the user paces the collector, by GOGC.
func Pace(room uint64, release func()) {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(idlePercent)
	p := &pacer{room: room, release: release, percent: idlePercent, began: time.Now(), last: time.Now()}
	p.arm()
}

type pacer struct {
	room    uint64
	release func()
	mu      sync.Mutex
	percent int
	began   time.Time
	last    time.Time
	total   uint64      // bytes allocated until then
	calm    *time.Timer // after a busy collection, until no other has followed
	trimmed time.Time
	trims   int // since the last sign of load
}

// arm has collected called after the next collection.
func (p *pacer) arm() { runtime.AddCleanup(new([64]byte), (*pacer).collected, p) }

func (p *pacer) collected() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	total, since := read("/gc/heap/allocs:bytes", 0), now.Sub(p.last)
	least := p.room
	if now.Sub(p.began) < startTime {
		least = min(least, startRoom)
	}
	p.set(percentFor(since, total-p.total, read("/gc/heap/live:bytes", p.room), least))
	p.last, p.total = now, total
	if since < busy {
		p.trims = 0
	}
	switch {
	case since >= busy:
	case p.calm == nil:
		p.calm = run.AfterFunc("memory: idle", calm, p.idle)
	default:
		p.calm.Reset(calm)
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
	next := wait
	if wait <= 0 {
		p.trimmed = time.Now()
		p.trims++
		next = trimAgain << (p.trims - 1)
	}
	if p.calm != nil && p.trims < trimsMost {
		p.calm.Reset(next)
	}
	p.mu.Unlock()
	if wait <= 0 {
		p.release()
	}
}

func (p *pacer) set(percent int) {
	if percent != p.percent {
		p.percent = percent
		debug.SetGCPercent(percent)
	}
}

// percentFor is how much the heap may grow, in percent of the bytes that are alive, after
// so many were allocated since the last collection; least is what it may grow by however
// few are alive. Pure.
func percentFor(sinceLast time.Duration, allocated, live, least uint64) int {
	if sinceLast >= busy {
		return idlePercent
	}
	most := max(busyPercent, int(least*100/max(live, least/4)))
	if live > spare {
		most = int((spare*busyPercent + (live-spare)*idlePercent) / live)
	}
	growth := float64(allocated) * float64(apart) / float64(max(sinceLast, 1))
	return int(min(max(idlePercent, growth*100/float64(max(live, 1))), float64(most)))
}

// read gives a metric of the Go runtime, or otherwise where it has none of that name.
func read(name string, otherwise uint64) uint64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return otherwise
	}
	return s[0].Value.Uint64()
}
