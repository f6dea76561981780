// Package logonce bounds what a log has of something that fails again and again. It reads the
// clock, and writes nothing.
package logonce

import (
	"hash/maphash"
	"maps"
	"sync"
	"time"
)

// A Filter lets a text pass at once, and then once in each Again. The zero value is ready.
type Filter struct {
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
	// Again is when a text is new again.
	Again = 10 * time.Minute
	// maxRemembered bounds the texts that are remembered; beyond it all are new again.
	maxRemembered = 4096
	// maxTexts bounds the texts about one thing in Again: a registry, or whoever else
	// answers, may answer otherwise each time.
	maxTexts = 10
)

// IsNew says whether a text about something is to be logged.
func (n *Filter) IsNew(about, text string) bool {
	now, key, of := time.Now(), maphash.Comparable(seed, [2]string{about, text}), maphash.String(seed, about)
	n.mu.Lock()
	defer n.mu.Unlock()
	if at, ok := n.last[key]; ok && now.Sub(at) < Again {
		return false
	}
	if len(n.last) >= maxRemembered {
		maps.DeleteFunc(n.last, func(_ uint64, at time.Time) bool { return now.Sub(at) >= Again })
	}
	if n.last == nil || len(n.last) >= maxRemembered {
		n.last = map[uint64]time.Time{}
	}
	if len(n.texts) >= maxRemembered {
		maps.DeleteFunc(n.texts, func(_ uint64, t texts) bool { return now.Sub(t.since) >= Again })
	}
	if n.texts == nil || len(n.texts) >= maxRemembered {
		n.texts = map[uint64]texts{}
	}
	others := n.texts[of]
	if now.Sub(others.since) >= Again {
		others = texts{since: now}
	}
	others.n++
	n.texts[of], n.last[key] = others, now
	return others.n <= maxTexts
}

var seed = maphash.MakeSeed()
