package storage_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/etcd"
)

const quota = 4 << 20

// full is a store whose member has no room for one more value.
func full(t *testing.T, ctx context.Context, key func(i int) string) (s *storage.Etcd, value []byte) {
	t.Helper()
	m, err := etcd.Start(ctx, etcd.Config{Dir: t.TempDir(), UnsafeNoFsync: true, QuotaBytes: quota})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- m.Run(running) }()
	t.Cleanup(func() { stop(); <-done })
	s = storage.NewEmbedded(m)
	value = bytes.Repeat([]byte("x"), quota/16)
	revisions := map[string]int64{}
	for i := 0; ctx.Err() == nil; i++ { // the size etcd looks at is of its last commit, up to 100 ms ago
		rev, _, ok, err := s.Put(ctx, key(i), value, revisions[key(i)], 0)
		if err != nil {
			if got := err.Error(); got != "etcdserver: mvcc: database space exceeded" {
				t.Fatalf("write %d: %s", i, got)
			}
			return s, value
		}
		if !ok {
			t.Fatalf("write %d: conflict", i)
		}
		revisions[key(i)] = rev
	}
	t.Fatal("the quota is never reached")
	return nil, nil
}

// A store full of history makes room by itself.
func TestRoomIsMade(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, value := full(t, ctx, func(int) string { return "/one" })
	for {
		kv, _, err := s.Get(ctx, "/one")
		if err != nil || kv == nil {
			t.Fatal(kv, err)
		}
		if _, _, ok, err := s.Put(ctx, "/one", value, kv.Revision, 0); err == nil && ok {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("no room is made")
		}
	}
	size, err := s.Size(ctx)
	if err != nil || size > quota/2 {
		t.Errorf("%d bytes, %v", size, err)
	}
}

// A store full of what is needed still forgets what is deleted, and loses nothing.
func TestFullStoreDeletes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, value := full(t, ctx, func(i int) string { return fmt.Sprintf("/%05d", i) })
	before, _, _, err := s.List(ctx, "/", "", 0, 0)
	if err != nil || len(before) < 8 {
		t.Fatal(len(before), err)
	}
	if _, _, ok, err := s.Delete(ctx, before[0].Key, before[0].Revision); err != nil || !ok {
		t.Fatalf("delete: %v, %v", ok, err)
	}
	after, _, _, err := s.List(ctx, "/", "", 0, 0)
	if err != nil || len(after) != len(before)-1 || !bytes.Equal(after[0].Value, value) {
		t.Errorf("%d values of %d, %v", len(after), len(before), err)
	}
}
