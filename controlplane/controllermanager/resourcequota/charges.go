package resourcequota

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/quota"
)

const (
	// settled is when whatever was being stored during a count is here to be
	// counted: a count that changed something is checked once more.
	settled = time.Second
	// longest is how long charges that never pause put off a count: a quota must
	// not fill up with what is gone.
	longest = 5 * time.Second
)

// charges are the times at which admission last charged quotas. It charges before
// the object is stored, so that a count made then misses the object: to write it
// would take the charge back, and let in more than the quota holds.
type charges struct {
	mu sync.Mutex
	of map[cache.ObjectName]charge
}

type charge struct {
	last time.Time
	// first is the first charge since which no count has been written.
	first time.Time
}

// note remembers that the quota was charged.
func (c *charges) note(key cache.ObjectName, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.of[key]
	if one.last = now; one.first.IsZero() {
		one.first = now
	}
	c.of[key] = one
}

// wait is how long a count that found less must wait, 0 if it may be written.
func (c *charges) wait(key cache.ObjectName, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	one, ok := c.of[key]
	until := one.last.Add(settled)
	if latest := one.first.Add(longest); latest.Before(until) {
		until = latest
	}
	if ok && now.Before(until) {
		return until.Sub(now)
	}
	delete(c.of, key)
	return 0
}

func (c *charges) forget(key cache.ObjectName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, key)
}

// charged is a quota whose use grew.
func charged(was, is *corev1.ResourceQuota) bool {
	return len(quota.More(is.Status.Used, was.Status.Used)) > 0
}

// atLeast is the count, or what the quota says now where that is more; lowered
// says that it is somewhere.
func atLeast(used, now corev1.ResourceList) (most corev1.ResourceList, lowered bool) {
	most = used.DeepCopy()
	for name, amount := range now {
		if counted, ok := used[name]; ok && counted.Cmp(amount) < 0 {
			most[name], lowered = amount, true
		}
	}
	return most, lowered
}
