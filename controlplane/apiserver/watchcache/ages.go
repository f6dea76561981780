package watchcache

import (
	"sync"
	"time"
)

// ages know about when revisions were the newest. Pages end when they are as
// old as history gets in upstream's store, even if nothing has changed since: a
// client that is slower than that finds it out in every cluster, not by chance
// in a busy one. Nothing runs for it: each request for an age also records one.
type ages struct {
	mu    sync.Mutex
	notes []note // by time, a minute and more between them
}

type note struct {
	at       time.Time
	revision int64
}

// oldest notes the newest revision and returns one that was the newest maxAge
// ago or before, 0 if none is known.
func (a *ages) oldest(now time.Time, newest int64) (rev int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.notes); n == 0 || now.Sub(a.notes[n-1].at) >= time.Minute {
		a.notes = append(a.notes, note{now, newest})
	}
	for len(a.notes) > 1 && now.Sub(a.notes[1].at) >= maxAge {
		a.notes = a.notes[1:]
	}
	if now.Sub(a.notes[0].at) >= maxAge {
		rev = a.notes[0].revision
	}
	return rev
}
