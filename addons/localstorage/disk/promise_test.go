package disk

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
)

// TestPromisedOnce: volumes that are made at once do not get the same space.
func TestPromisedOnce(t *testing.T) {
	s := withImages(t)
	free, err := s.Available()
	ok(t, err)
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i, id := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			_, errs[i] = s.Create(t.Context(), Request{ID: id, Name: id, Size: free / 10 * 6, Limit: Image})
		})
	}
	wg.Wait()
	made := 0
	for _, err := range errs {
		if err == nil {
			made++
		} else if !errors.Is(err, ErrNoSpace) {
			t.Error(err)
		}
	}
	if made != 1 {
		t.Errorf("%d volumes of 60%% of what is free were made: %v", made, errs)
	}
}

// TestReserve: what volumes leave to the node, small file systems half.
func TestReserve(t *testing.T) {
	for _, c := range []struct{ size, want int64 }{
		{0, 0}, {1 << 30, 1 << 29}, {4 << 30, 2 << 30}, {10 << 30, 2 << 30}, {20 << 30, 2 << 30}, {100 << 30, 10 << 30},
	} {
		if got := reserve(c.size); got != c.want {
			t.Errorf("of %d: %d, want %d", c.size, got, c.want)
		}
	}
}

// TestPromiseEnds: what was set aside can be had again.
func TestPromiseEnds(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "storage"))
	free, err := s.Available()
	ok(t, err)
	done, err := s.promise(free/10*9, Image)
	ok(t, err)
	if _, err := s.promise(free/2, Image); !errors.Is(err, ErrNoSpace) {
		t.Errorf("beyond what is left: %v", err)
	}
	unlimited, err := s.promise(free/20, None)
	ok(t, err)
	if s.pending != free/10*9 {
		t.Errorf("%d bytes pending", s.pending)
	}
	unlimited()
	done()
	if s.pending != 0 {
		t.Errorf("%d bytes pending once it is done", s.pending)
	}
}
