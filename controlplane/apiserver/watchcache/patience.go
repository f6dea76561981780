package watchcache

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// How long a store that fails is left alone: twice as long each time, from the
// first to the longest. What went well for the longest begins anew. What goes on
// failing is said once a while.
const (
	firstWait   = 50 * time.Millisecond
	longestWait = 2 * time.Second
	sayAgain    = 30 * time.Second
)

// patience is how often a store has failed since it last worked.
type patience struct {
	wait   time.Duration
	said   time.Time
	untold int // failures since
}

// after notes a failure of what went well for so long, and says how long to wait
// and how many failures there are to tell of, 0 for not now.
func (p *patience) after(lived time.Duration, now time.Time) (wait time.Duration, tell int) {
	if lived >= longestWait {
		*p = patience{}
	}
	p.wait = min(max(2*p.wait, firstWait), longestWait)
	p.untold++
	if p.said.IsZero() || now.Sub(p.said) >= sayAgain {
		tell, p.said, p.untold = p.untold, now, 0
	}
	return p.wait, tell
}

// pause waits after a failure of what began then, and tells of it.
func (p *patience) pause(ctx context.Context, what string, began time.Time, err error) {
	wait, tell := p.after(time.Since(began), time.Now())
	if tell > 0 {
		slog.WarnContext(ctx, what, "err", err, "times", tell)
	}
	select {
	case <-time.After(wait/2 + rand.N(wait/2)): // not all servers at once
	case <-ctx.Done():
	}
}
