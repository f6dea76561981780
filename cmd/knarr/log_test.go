package main

import (
	"log/slog"
	"testing"
)

// TestLogMore: how much is logged changes while the process runs, in whatever format.
func TestLogMore(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	for _, format := range []string{"text", "json"} {
		logAs(format, false)
		log := slog.Default()
		for _, more := range []bool{true, false} {
			logMore(more)
			if got := log.Enabled(t.Context(), slog.LevelDebug); got != more {
				t.Errorf("%s: debugging %v, want %v", format, got, more)
			}
		}
	}
}
