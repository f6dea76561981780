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
	mu    sync.Mutex
	last  map[uint64]time.Time // by a digest: texts may be long, and tenants have some say in them
	texts map[uint64]texts     // by a digest of what they are about
}

// texts are how many were new since a time.
type texts struct {
	since time.Time
	n     int
}

const (
	newsAgain = 10 * time.Minute
	// maxNews bounds the texts that are remembered; beyond it all are new again.
	maxNews = 4096
	// maxTexts bounds the texts about one thing in newsAgain: a registry, or whoever else
	// answers, may answer otherwise each time.
	maxTexts = 10
)

// isNew says whether a text about something is to be logged.
func (n *news) isNew(about, text string) bool {
	now, key, of := time.Now(), maphash.Comparable(newsSeed, [2]string{about, text}), maphash.String(newsSeed, about)
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
	if len(n.texts) >= maxNews {
		maps.DeleteFunc(n.texts, func(_ uint64, t texts) bool { return now.Sub(t.since) >= newsAgain })
	}
	if n.texts == nil || len(n.texts) >= maxNews {
		n.texts = map[uint64]texts{}
	}
	others := n.texts[of]
	if now.Sub(others.since) >= newsAgain {
		others = texts{since: now}
	}
	others.n++
	n.texts[of], n.last[key] = others, now
	return others.n <= maxTexts
}

var newsSeed = maphash.MakeSeed()
