package run

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestPanicEndsOneGoroutine(t *testing.T) {
	var g Group
	before := Panics()["test group"]
	done := 0
	g.Go("test group", func() { panic("a bad member") })
	g.Go("test group", func() { done++ })
	g.Wait()
	if got := Panics()["test group"] - before; got != 1 || done != 1 {
		t.Errorf("panics counted: %d, others done: %d; want 1 and 1", got, done)
	}

	ended := make(chan struct{})
	Go("test go", func() { defer close(ended); panic("another") })
	<-ended
	if err := Catch("test catch", func() error { panic("a third") }); err == nil || !strings.Contains(err.Error(), "test catch: panic: a third") {
		t.Errorf("Catch returned %v", err)
	}
}

func TestLoopStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var g Group
		starts := 0
		began := time.Now()
		g.Loop(ctx, "test loop", func(ctx context.Context) {
			if starts++; starts < 4 {
				panic("not yet")
			}
			<-ctx.Done()
		})
		time.Sleep(time.Hour)
		synctest.Wait()
		if starts != 4 {
			t.Errorf("the loop was started %d times, want 4", starts)
		}
		cancel()
		g.Wait()
		if took := time.Since(began); took != time.Hour {
			t.Errorf("the group ended after %s", took)
		}
	})
}

func TestAfterFuncRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := Panics()["test timer"]
		AfterFunc("test timer", time.Second, func() { panic("late") })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := Panics()["test timer"] - before; got != 1 {
			t.Errorf("panics counted: %d, want 1", got)
		}
	})
}
