package storage

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// entered starts n writes that wait, and tells on a channel in which turn each went.
func entered(ctx context.Context, t *turns, n int) <-chan uint64 {
	went := make(chan uint64, n)
	for range n {
		go func() {
			turn, err := t.enter(ctx)
			if err != nil {
				turn = 0
			}
			went <- turn
		}()
	}
	synctest.Wait()
	return went
}

func TestTurnsLetOneGoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts turns
		began := time.Now()
		for i := range 100 {
			turn, err := ts.enter(t.Context())
			if err != nil || turn != uint64(i+1) {
				t.Fatalf("write %d went in turn %d, %v", i, turn, err)
			}
			ts.leave(turn)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("waited %v for nobody", took)
		}
	})
}

func TestTurnsGather(t *testing.T) {
	for name, c := range map[string]struct {
		coming int64
		want   time.Duration
	}{
		"nobody else comes":  {9, 0},
		"a few come":         {9 + siblings - 1, 0},
		"many come, or hang": {9 + siblings, patience},
	} {
		synctest.Test(t, func(t *testing.T) {
			var ts turns
			first := <-entered(t.Context(), &ts, 1)
			ts.coming.Store(c.coming)
			began := time.Now()
			went := entered(t.Context(), &ts, 9)
			if len(went) != 0 {
				t.Fatalf("%s: %d went beside the first", name, len(went))
			}
			ts.leave(first)
			for range 9 {
				if turn := <-went; turn != first+1 {
					t.Errorf("%s: went in turn %d", name, turn)
				}
			}
			if took := time.Since(began); took != c.want {
				t.Errorf("%s: the next turn began after %v, want %v", name, took, c.want)
			}
			for range 9 {
				ts.leave(first + 1)
			}
			if turn := <-entered(t.Context(), &ts, 1); turn != first+2 {
				t.Errorf("%s: after all have gone one goes in turn %d", name, turn)
			}
		})
	}
}

// Those who come while a turn waits for more end its waiting once it has enough.
func TestTurnsGoWhenAllHaveCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts turns
		first := <-entered(t.Context(), &ts, 1)
		ts.coming.Store(siblings + 5)
		early := entered(t.Context(), &ts, 1)
		ts.leave(first)
		time.Sleep(patience / 2)
		late := entered(t.Context(), &ts, 5)
		for _, went := range []<-chan uint64{early, late} {
			for range cap(went) {
				select {
				case turn := <-went:
					if turn != first+1 {
						t.Errorf("went in turn %d", turn)
					}
				default:
					t.Error("still waits")
				}
			}
		}
		time.Sleep(time.Second) // no timer is left that would begin another
		if ts.turn != first+1 || ts.timer != nil {
			t.Errorf("turn %d, timer %v", ts.turn, ts.timer)
		}
	})
}

func TestTurnsForgetWhoIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts turns
		first := <-entered(t.Context(), &ts, 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := entered(ctx, &ts, 3)
		cancel(errors.New("gone"))
		synctest.Wait()
		for range 3 {
			if turn := <-gone; turn != 0 {
				t.Errorf("went in turn %d", turn)
			}
		}
		ts.leave(first)
		for range 2 {
			turn, err := ts.enter(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ts.leave(turn)
		}
	})
}
