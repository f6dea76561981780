package etcd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestUntilTaken: a change of members that a leader forgets is asked for again, so often and
// no longer.
func TestUntilTaken(t *testing.T) {
	refused := errors.New("refused")
	for _, tt := range []struct {
		name  string
		lost  int
		err   error
		asked int
		took  time.Duration
		want  error
	}{
		{"taken", 0, nil, 1, 0, nil},
		{"lost twice", 2, nil, 3, 2 * lostTime, nil},
		{"lost always", 99, nil, changeTries, changeTries * lostTime, context.DeadlineExceeded},
		{"refused", 0, refused, changeTries, 0, refused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, began := 0, time.Now()
				err := untilTaken(t.Context(), lostTime, func(ctx context.Context) error {
					if asked++; asked <= tt.lost {
						<-ctx.Done()
						return ctx.Err()
					}
					return tt.err
				})
				if !errors.Is(err, tt.want) || asked != tt.asked || time.Since(began) != tt.took {
					t.Errorf("%v after %s and %d times, want %v, %s, %d", err, time.Since(began), asked, tt.want, tt.took, tt.asked)
				}
			})
		})
	}
}
