package run

import (
	"errors"
	"sync/atomic"
	"testing"
)

func TestEach(t *testing.T) {
	bad := errors.New("bad")
	var calls atomic.Int32
	errs := Each("test each", 3, 100, func(i int) error {
		calls.Add(1)
		switch {
		case i%10 == 3:
			panic("a bad member")
		case i%10 == 5:
			return bad
		}
		return nil
	})
	if calls.Load() != 100 || len(errs) != 100 {
		t.Fatalf("%d calls, %d results; want 100 of each", calls.Load(), len(errs))
	}
	for i, err := range errs {
		switch i % 10 {
		case 3:
			if err == nil {
				t.Errorf("call %d panicked and has no error", i)
			}
		case 5:
			if !errors.Is(err, bad) {
				t.Errorf("call %d: %v", i, err)
			}
		default:
			if err != nil {
				t.Errorf("call %d: %v", i, err)
			}
		}
	}
	if errs := Each("test each", 4, 0, nil); len(errs) != 0 {
		t.Errorf("nothing to do gave %v", errs)
	}
}
