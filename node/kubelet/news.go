package kubelet

import (
	"hash/maphash"
	"maps"
	"sync"
	"time"
)

// news bounds what the log has of something that is tried, and fails, again and again: a
// text is new at once and then once in each newsAgain. The zero value is ready.
type news struct {
	mu   sync.Mutex
	last map[uint64]time.Time // by a digest: texts may be long, and tenants have some say in them
}

const (
	newsAgain = 10 * time.Minute
	// maxNews bounds the texts that are remembered; beyond it all are new again.
	maxNews = 4096
)

// isNew says whether a text about something is to be logged.
func (n *news) isNew(about, text string) bool {
	now, key := time.Now(), maphash.Comparable(newsSeed, [2]string{about, text})
	n.mu.Lock()
	defer n.mu.Unlock()
	if at, ok := n.last[key]; ok && now.Sub(at) < newsAgain {
		return false
	}
	if len(n.last) >= maxNews {
		maps.DeleteFunc(n.last, func(_ uint64, at time.Time) bool { return now.Sub(at) >= newsAgain })
	}
	if n.last == nil || len(n.last) >= maxNews {
		n.last = map[uint64]time.Time{}
	}
	n.last[key] = now
	return true
}

var newsSeed = maphash.MakeSeed()
