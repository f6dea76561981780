package run

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := Func("wait", func(ctx context.Context) error { <-ctx.Done(); return nil })
		boom := Func("boom", func(context.Context) error { time.Sleep(time.Hour); return errors.New("x") })
		if err := All(t.Context(), wait, boom); err == nil || err.Error() != "boom: x" {
			t.Fatalf("got %v, want boom: x", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		if err := All(ctx, wait); err != nil {
			t.Fatal(err)
		}
		if err := All(t.Context(), Func("quick", func(context.Context) error { return nil })); err != nil {
			t.Fatal(err)
		}
	})
}
