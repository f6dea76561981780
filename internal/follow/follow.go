// Package follow announces that a file may have changed. It reads the file's folder
// and writes nothing.
package follow

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"knarr/internal/inotify"
)

// settle is how long a change may take to be whole.
const settle = 100 * time.Millisecond

// File calls changed at once, since the file may have changed after it was
// read, and whenever it may have changed, until ctx ends. What changed returns
// is when to call it again all the same; 0 is never.
func File(ctx context.Context, file string, changed func() (again time.Duration)) error {
	w, err := inotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", file, err)
	}
	defer w.Close()
	// The folder: files are replaced by renaming, those of a volume by a link.
	if err := w.Add(filepath.Dir(file)); err != nil {
		return fmt.Errorf("watch %s: %w", file, err)
	}
	due, soon := time.After(0), true
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			if !soon {
				due, soon = time.After(settle), true
			}
		case err := <-w.Errors:
			slog.WarnContext(ctx, "watch a configuration file", "file", file, "err", err)
		case <-due:
			due, soon = nil, false
			if again := changed(); again > 0 {
				due = time.After(again)
			}
		}
	}
}
