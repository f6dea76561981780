package storage_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"knarr/controlplane/apiserver/storage"
)

// What is younger than the history kept can be read, what is older cannot.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s := storage.NewMemory()
		defer s.Close()
		put := func(key string) int64 {
			rev, _, ok, err := s.Put(ctx, key, nil, 0, 0)
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			return rev
		}
		old := put("/old")
		forgotten := make(chan struct{})
		running, end := context.WithCancel(ctx)
		go func() { defer close(forgotten); storage.Forget(running, s, time.Minute) }()
		synctest.Wait()
		young := put("/young")
		put("/newest")
		time.Sleep(time.Minute + time.Second)
		if _, _, _, err := s.List(ctx, "/", "", 0, young); err != nil {
			t.Errorf("the young revision: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if _, _, _, err := s.List(ctx, "/", "", 0, old); !errors.Is(err, storage.ErrCompacted) {
			t.Errorf("the old revision: %v", err)
		}
		end()
		<-forgotten
	})
}
