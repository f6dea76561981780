package storage_test

import (
	"testing"
	"testing/synctest"
	"time"

	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/storage/storagetest"
)

func TestMemory(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store {
		s := storage.NewMemory()
		t.Cleanup(func() { s.Close() })
		return s
	})
}

func TestMemoryTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storage.NewMemory()
		if _, _, ok, err := s.Put(t.Context(), "/e", nil, 0, time.Hour); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(time.Hour - time.Second)
		if kv, _, _ := s.Get(t.Context(), "/e"); kv == nil {
			t.Error("gone too early")
		}
		time.Sleep(2 * time.Second)
		if kv, _, _ := s.Get(t.Context(), "/e"); kv != nil {
			t.Error("still there after its time")
		}
	})
}
