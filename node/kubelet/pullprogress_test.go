package kubelet

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestTellProgress: a pull of a quarter of an hour is told of five times.
func TestTellProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
		defer cancel()
		began := time.Now()
		var got []time.Duration
		tellProgress(ctx, func() { got = append(got, time.Since(began)) })
		if want := []time.Duration{30 * time.Second, 90 * time.Second, 210 * time.Second, 450 * time.Second, 750 * time.Second}; !slices.Equal(got, want) {
			t.Errorf("told at %v, want %v", got, want)
		}
	})
	if got := progressMessage("a.io/b:1", 1500000, 6000000); got != `Pulling image "a.io/b:1": 1.5 of 6.0 MB are there (25%)` {
		t.Error(got)
	}
}
