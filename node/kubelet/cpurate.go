package kubelet

import (
	"sync"
	"time"
)

// cpuRate turns a growing counter into cores in use.
type cpuRate struct {
	mu   sync.Mutex
	used uint64
	at   time.Time
	last *uint64
}

func (r *cpuRate) rate(used uint64, at time.Time) *uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	passed := at.Sub(r.at)
	if r.at.IsZero() || passed < 100*time.Millisecond {
		if r.at.IsZero() {
			r.used, r.at = used, at
		}
		return r.last
	}
	v := uint64(float64(used-r.used) / passed.Seconds())
	r.used, r.at, r.last = used, at, &v
	return r.last
}
