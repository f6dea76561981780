package encryption

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"knarr/internal/follow"
	"knarr/internal/run"
)

// Run keeps in touch with the plugins until ctx ends, and, with reload, reads
// the file anew when it changes; it calls changed when what could not be opened
// may be opened now. A file that says nothing sensible, or whose plugins are not
// well, leaves the keys as they are.
func (k *Keys) Run(ctx context.Context, reload bool, changed func()) error {
	var wg run.Group
	defer func() {
		wg.Wait()
		for _, p := range *k.plugins.Load() {
			p.conn.Close()
		}
	}()
	kept := map[*kms]context.CancelFunc{}
	keep := func() {
		now := *k.plugins.Load()
		for p, stop := range kept {
			if !slices.Contains(now, p) {
				stop()
				delete(kept, p)
			}
		}
		for _, p := range now {
			if kept[p] == nil {
				one, stop := context.WithCancel(ctx)
				kept[p] = stop
				wg.Loop(one, "KMS plugin", func(one context.Context) { p.runStatusChecks(one, changed) })
			}
		}
	}
	keep()
	defer func() {
		for _, stop := range kept {
			stop()
		}
	}()
	if !reload {
		<-ctx.Done()
		return nil
	}
	return follow.File(ctx, k.file, func() time.Duration {
		news, err := k.load()
		if err != nil {
			slog.ErrorContext(ctx, "encryption configuration not taken over", "file", k.file, "err", err)
		}
		if news || err != nil {
			k.counts.recordReload(err)
		}
		if news {
			keep()
			changed()
		}
		return 0
	})
}
