package watchcache

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// The backoff after a failure of the store doubles from the least to the most. It
// starts again after a connection that lasted maxBackoff. Repeated failures are
// logged once per reportInterval.
const (
	minBackoff     = 50 * time.Millisecond
	maxBackoff     = 2 * time.Second
	reportInterval = 30 * time.Second
)

// backoff is how often a store has failed since it last worked.
type backoff struct {
	wait       time.Duration
	lastReport time.Time
	unreported int // failures since
}

// after notes a failure of what went well for so long, and says how long to wait
// and how many failures there are to log, 0 for not now.
func (b *backoff) after(uptime time.Duration, now time.Time) (wait time.Duration, report int) {
	if uptime >= maxBackoff {
		*b = backoff{}
	}
	b.wait = min(max(2*b.wait, minBackoff), maxBackoff)
	b.unreported++
	if b.lastReport.IsZero() || now.Sub(b.lastReport) >= reportInterval {
		report, b.lastReport, b.unreported = b.unreported, now, 0
	}
	return b.wait, report
}

// pause waits after a failure of what began then, and logs it.
func (b *backoff) pause(ctx context.Context, what string, began time.Time, err error) {
	wait, report := b.after(time.Since(began), time.Now())
	if report > 0 {
		slog.WarnContext(ctx, what, "err", err, "times", report)
	}
	select {
	case <-time.After(wait/2 + rand.N(wait/2)): // not all servers at once
	case <-ctx.Done():
	}
}
