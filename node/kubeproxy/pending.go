package kubeproxy

import (
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
)

// pending collects Services whose rules must be looked at again. While one
// batch is written the next gathers, so that a burst costs few transactions and
// a single change waits for nothing.
type pending struct {
	mu       sync.Mutex
	keys     map[cache.ObjectName]Rules
	triggers []trigger
	c        chan struct{}

	updated         time.Time // when all was last written
	oldest, writing time.Time // since when a change waits, and one that is being written
}

func newPending() *pending {
	return &pending{keys: map[cache.ObjectName]Rules{}, c: make(chan struct{}, 1)}
}

func (p *pending) add(key cache.ObjectName) {
	p.mu.Lock()
	p.keys[key] = Rules{}
	if p.oldest.IsZero() {
		p.oldest = time.Now()
	}
	p.mu.Unlock()
	select {
	case p.c <- struct{}{}:
	default:
	}
}

// maxTriggers bounds how many changes of a burst are measured.
const maxTriggers = 10_000

// addTrigger has the change that waits be measured from its cause.
func (p *pending) addTrigger(t trigger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.triggers) < maxTriggers {
		p.triggers = append(p.triggers, t)
	}
}

func (p *pending) take() (map[cache.ObjectName]Rules, []trigger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys, triggers := p.keys, p.triggers
	p.keys, p.triggers = map[cache.ObjectName]Rules{}, nil
	if p.writing.IsZero() { // else what failed before is written again
		p.writing = time.Now()
		if !p.oldest.IsZero() {
			p.writing = p.oldest
		}
	}
	p.oldest = time.Time{}
	return keys, triggers
}

// written notes that the kernel has what was taken.
func (p *pending) written() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updated, p.writing = time.Now(), time.Time{}
}

// state is when all was last written, and whether a change waits too long.
func (p *pending) state(now time.Time) (updated time.Time, late bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, since := range []time.Time{p.oldest, p.writing} {
		late = late || !since.IsZero() && now.Sub(since) >= healthTimeout
	}
	return p.updated, late
}
