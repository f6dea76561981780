package storage

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// entered starts n writes that wait, and tells on a channel in which group each went.
func entered(ctx context.Context, g *groupCommit, n int) <-chan uint64 {
	went := make(chan uint64, n)
	for range n {
		go func() {
			group, err := g.enter(ctx)
			if err != nil {
				group = 0
			}
			went <- group
		}()
	}
	synctest.Wait()
	return went
}

func TestGroupCommitOfOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g groupCommit
		began := time.Now()
		for i := range 100 {
			group, err := g.enter(t.Context())
			if err != nil || group != uint64(i+1) {
				t.Fatalf("write %d went in group %d, %v", i, group, err)
			}
			g.leave(group)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("waited %v for nobody", took)
		}
	})
}

func TestGroupCommitBatches(t *testing.T) {
	for name, c := range map[string]struct {
		inFlight int64
		want     time.Duration
	}{
		"nobody else comes":  {9, 0},
		"a few come":         {9 + manyInFlight - 1, 0},
		"many come, or hang": {9 + manyInFlight, longestWait},
	} {
		synctest.Test(t, func(t *testing.T) {
			var g groupCommit
			first := <-entered(t.Context(), &g, 1)
			g.inFlight.Store(c.inFlight)
			began := time.Now()
			went := entered(t.Context(), &g, 9)
			if len(went) != 0 {
				t.Fatalf("%s: %d went beside the first", name, len(went))
			}
			g.leave(first)
			for range 9 {
				if group := <-went; group != first+1 {
					t.Errorf("%s: went in group %d", name, group)
				}
			}
			if took := time.Since(began); took != c.want {
				t.Errorf("%s: the next group began after %v, want %v", name, took, c.want)
			}
			for range 9 {
				g.leave(first + 1)
			}
			if group := <-entered(t.Context(), &g, 1); group != first+2 {
				t.Errorf("%s: after all have gone one goes in group %d", name, group)
			}
		})
	}
}

// Those who come while a group waits for more end its waiting once it has enough.
func TestGroupCommitOfEnoughWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g groupCommit
		first := <-entered(t.Context(), &g, 1)
		g.inFlight.Store(manyInFlight + 5)
		early := entered(t.Context(), &g, 1)
		g.leave(first)
		time.Sleep(longestWait / 2)
		late := entered(t.Context(), &g, 5)
		for _, went := range []<-chan uint64{early, late} {
			for range cap(went) {
				select {
				case group := <-went:
					if group != first+1 {
						t.Errorf("went in group %d", group)
					}
				default:
					t.Error("still waits")
				}
			}
		}
		time.Sleep(time.Second) // no timer is left that would begin another
		if g.group != first+1 || g.timer != nil {
			t.Errorf("group %d, timer %v", g.group, g.timer)
		}
	})
}

func TestGroupCommitWithoutCanceledWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g groupCommit
		first := <-entered(t.Context(), &g, 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := entered(ctx, &g, 3)
		cancel(errors.New("gone"))
		synctest.Wait()
		for range 3 {
			if group := <-gone; group != 0 {
				t.Errorf("went in group %d", group)
			}
		}
		g.leave(first)
		for range 2 {
			group, err := g.enter(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			g.leave(group)
		}
	})
}
