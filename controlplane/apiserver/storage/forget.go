package storage

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// History is how long a store remembers what was: upstream's figure.
const History = 5 * time.Minute

// Forget compacts a store that does not do it by itself, again and again: what
// is older than history is forgotten. Several servers of one store may each do
// so. It returns when ctx ends.
func Forget(ctx context.Context, s Store, history time.Duration) {
	every := time.NewTicker(history)
	defer every.Stop()
	var before int64
	for {
		now, err := s.Revision(ctx)
		if err == nil && before > 0 && now > before {
			err = s.Compact(ctx, before)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, ErrCompacted):
			slog.WarnContext(ctx, "forget the store's history", "err", err)
		default:
			before = now
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
	}
}
