package watchcache

import (
	"sync"
	"weak"
)

// defaultBudget bounds what decoded objects and JSON may take, in bytes as
// estimated from encoded sizes.
const defaultBudget = 16 << 20

// budget makes the records that decoded or encoded first forget it first, once
// all together hold more than limit bytes. It keeps no record alive.
type budget struct {
	mu    sync.Mutex
	limit int
	used  int
	queue []budgetEntry
	head  int
}

type budgetEntry struct {
	record weak.Pointer[Record]
	size   int
}

func (b *budget) spend(r *Record, size int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = append(b.queue, budgetEntry{weak.Make(r), size})
	b.used += size
	for b.used > b.limit && b.head < len(b.queue)-1 {
		old := b.queue[b.head]
		b.queue[b.head] = budgetEntry{}
		b.head++
		b.used -= old.size
		if rec := old.record.Value(); rec != nil {
			rec.forget()
		}
	}
	if b.head > 1024 && b.head > len(b.queue)/2 {
		b.queue = append([]budgetEntry(nil), b.queue[b.head:]...)
		b.head = 0
	}
}
