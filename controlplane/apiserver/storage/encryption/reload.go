package encryption

import (
	"context"
	"log/slog"
	"time"

	"knarr/internal/follow"
)

// Follow reads the file anew when it changes, until ctx ends, and calls
// changed then. A file that says nothing sensible leaves the keys as they are.
func (k *Keys) Follow(ctx context.Context, changed func()) error {
	return follow.File(ctx, k.file, func() time.Duration {
		if err := k.load(); err != nil {
			slog.ErrorContext(ctx, "encryption configuration not taken over", "file", k.file, "err", err)
			return 0
		}
		changed()
		return 0
	})
}
