package encryption

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long a file may be half written after its first change.
const settle = 100 * time.Millisecond

// Follow reads the file anew when it changes, until ctx ends. A file that says
// nothing sensible leaves the keys as they are.
func (k *Keys) Follow(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", k.file, err)
	}
	defer w.Close()
	// The folder: files are replaced by renaming, those of a volume by a link.
	if err := w.Add(filepath.Dir(k.file)); err != nil {
		return fmt.Errorf("watch %s: %w", k.file, err)
	}
	due := time.After(0) // it may have changed since it was read
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			if due == nil {
				due = time.After(settle)
			}
		case err := <-w.Errors:
			slog.WarnContext(ctx, "watch the encryption configuration", "file", k.file, "err", err)
		case <-due:
			due = nil
			if err := k.load(); err != nil {
				slog.ErrorContext(ctx, "encryption configuration not taken over", "file", k.file, "err", err)
			}
		}
	}
}
