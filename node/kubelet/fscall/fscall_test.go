package fscall

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		answer := make(chan struct{})
		began := time.Now()
		var calls atomic.Int32
		hang := func() error { calls.Add(1); <-answer; return nil }
		e := &Error{}
		if err := c.Do(t.Context(), "/nfs", 10*time.Second, hang); !errors.As(err, &e) || time.Since(began) != 10*time.Second {
			t.Fatalf("%v after %s", err, time.Since(began))
		}
		for range 3 { // no second one while the first hangs, and no waiting for it
			if err := c.Do(t.Context(), "/nfs", 10*time.Second, hang); !errors.As(err, &e) || err.Error() != "the file system of /nfs does not answer" {
				t.Error(err)
			}
		}
		if calls.Load() != 1 || time.Since(began) != 10*time.Second || len(c.Hanging()) != 1 {
			t.Errorf("%d calls, %s, hanging %v", calls.Load(), time.Since(began), c.Hanging())
		}
		failed := errors.New("failed")
		if err := c.Do(t.Context(), "/other", 0, func() error { return failed }); err != failed {
			t.Error(err)
		}
		close(answer)
		synctest.Wait()
		if err := c.Do(t.Context(), "/nfs", 0, func() error { return nil }); err != nil || len(c.Hanging()) != 0 {
			t.Errorf("after the answer: %v, %v", err, c.Hanging())
		}
	})
}

// TestCallsToOnePath: calls to one path follow each other, and one that panics ends alone.
func TestCallsToOnePath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- c.Do(t.Context(), "/a", 0, func() error { time.Sleep(time.Minute); panic("bad") }) }()
		synctest.Wait()
		began := time.Now()
		if err := c.Do(ctx, "/a", time.Hour, func() error { return nil }); err != nil || time.Since(began) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if err := <-first; err == nil {
			t.Error("a panic was no error")
		}
		go func() { time.Sleep(time.Second); cancel() }()
		for range 2 {
			if err := c.Do(ctx, "/a", time.Hour, func() error { time.Sleep(time.Minute); return nil }); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		time.Sleep(time.Hour)
	})
}
