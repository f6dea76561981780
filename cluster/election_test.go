package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
)

// What runs alone ends before it runs by election, and ends with its context.
func TestSwitchToElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			grows string // before, while, never
			want  []string
		}{
			{"never", []string{"alone", "ended alone"}},
			{"while", []string{"alone", "ended alone", "elected", "ended elected"}},
			{"before", []string{"elected", "ended elected"}},
		} {
			ctx, stop := context.WithCancel(t.Context())
			several := make(chan struct{})
			if c.grows == "before" {
				close(several)
			}
			var states []string
			done := make(chan error, 1)
			go func() {
				done <- switchToElection(ctx, several, func(ctx context.Context, elect bool) error {
					how := map[bool]string{false: "alone", true: "elected"}[elect]
					states = append(states, how)
					<-ctx.Done()
					states = append(states, "ended "+how)
					return nil
				})
			}()
			synctest.Wait()
			if c.grows == "while" {
				close(several)
				synctest.Wait()
			}
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if !slices.Equal(states, c.want) {
				t.Errorf("%s: %v, want %v", c.grows, states, c.want)
			}
		}
		err := switchToElection(t.Context(), make(chan struct{}), func(context.Context, bool) error { return fmt.Errorf("broken") })
		if err == nil || err.Error() != "broken" {
			t.Errorf("%v", err)
		}
	})
}
