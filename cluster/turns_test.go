package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
)

// What runs alone ends before it runs by election, and ends with its context.
func TestInTurns(t *testing.T) {
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
			var said []string
			done := make(chan error, 1)
			go func() {
				done <- inTurns(ctx, several, func(ctx context.Context, elect bool) error {
					how := map[bool]string{false: "alone", true: "elected"}[elect]
					said = append(said, how)
					<-ctx.Done()
					said = append(said, "ended "+how)
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
			if !slices.Equal(said, c.want) {
				t.Errorf("%s: %v, want %v", c.grows, said, c.want)
			}
		}
		err := inTurns(t.Context(), make(chan struct{}), func(context.Context, bool) error { return fmt.Errorf("broken") })
		if err == nil || err.Error() != "broken" {
			t.Errorf("%v", err)
		}
	})
}
