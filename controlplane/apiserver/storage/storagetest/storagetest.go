// Package storagetest is the contract of storage.Store as a test, the same for
// every implementation. It reads and writes the store it is given.
package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"knarr/controlplane/apiserver/storage"
)

// Run tests the store that open returns, empty each time.
func Run(t *testing.T, open func(*testing.T) storage.Store) {
	for _, c := range []struct {
		name string
		test func(*testing.T, context.Context, storage.Store)
	}{
		{"put", put}, {"delete", remove}, {"list", list}, {"watch", watch}, {"compact", compact}, {"race", race},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			c.test(t, ctx, open(t))
		})
	}
}

func must(t *testing.T, ctx context.Context, s storage.Store, key, value string, expect int64) int64 {
	t.Helper()
	rev, _, ok, err := s.Put(ctx, key, []byte(value), expect, 0)
	if err != nil || !ok {
		t.Fatalf("put %s: ok %v, err %v", key, ok, err)
	}
	return rev
}

func put(t *testing.T, ctx context.Context, s storage.Store) {
	if kv, _, err := s.Get(ctx, "/a"); err != nil || kv != nil {
		t.Fatalf("get of nothing: %v, %v", kv, err)
	}
	one := must(t, ctx, s, "/a", "1", 0)
	if _, current, ok, err := s.Put(ctx, "/a", []byte("2"), 0, 0); err != nil || ok || current == nil || string(current.Value) != "1" || current.Revision != one {
		t.Fatalf("create over existing: %v %v %v", current, ok, err)
	}
	two := must(t, ctx, s, "/a", "2", one)
	if two <= one {
		t.Fatalf("revision went from %d to %d", one, two)
	}
	if _, current, ok, _ := s.Put(ctx, "/a", []byte("3"), one, 0); ok || current.Revision != two {
		t.Fatalf("stale put: %v %v", current, ok)
	}
	if _, current, ok, _ := s.Put(ctx, "/b", []byte("3"), two, 0); ok || current != nil {
		t.Fatalf("update of nothing: %v %v", current, ok)
	}
	kv, rev, err := s.Get(ctx, "/a")
	if err != nil || string(kv.Value) != "2" || kv.Revision != two || kv.Created != one || rev != two {
		t.Fatalf("get: %+v at %d, %v", kv, rev, err)
	}
	if rev, err := s.Revision(ctx); err != nil || rev != two {
		t.Fatalf("revision %d, want %d: %v", rev, two, err)
	}
}

func remove(t *testing.T, ctx context.Context, s storage.Store) {
	one := must(t, ctx, s, "/a", "1", 0)
	if _, current, ok, err := s.Delete(ctx, "/a", one+100); err != nil || ok || current == nil || current.Revision != one {
		t.Fatalf("delete at the wrong revision: %v %v %v", current, ok, err)
	}
	rev, _, ok, err := s.Delete(ctx, "/a", one)
	if err != nil || !ok || rev <= one {
		t.Fatalf("delete: %d %v %v", rev, ok, err)
	}
	if _, current, ok, err := s.Delete(ctx, "/a", one); err != nil || ok || current != nil {
		t.Fatalf("second delete: %v %v %v", current, ok, err)
	}
	must(t, ctx, s, "/a", "again", 0)
}

func list(t *testing.T, ctx context.Context, s storage.Store) {
	var last int64
	for i := range 10 {
		last = must(t, ctx, s, fmt.Sprintf("/p/%d", i), "v", 0)
	}
	must(t, ctx, s, "/q", "other", 0)
	kvs, rev, more, err := s.List(ctx, "/p/", "", 4, 0)
	if err != nil || len(kvs) != 4 || !more || rev != last+1 {
		t.Fatalf("first page: %d keys, more %v, rev %d, %v", len(kvs), more, rev, err)
	}
	must(t, ctx, s, "/p/99", "late", 0)
	kvs, again, more, err := s.List(ctx, "/p/", kvs[3].Key, 0, rev)
	if err != nil || len(kvs) != 6 || more || again != rev || kvs[0].Key != "/p/4" {
		t.Fatalf("rest at the old revision: %d keys, more %v, rev %d, %v", len(kvs), more, again, err)
	}
	if kvs, _, _, err = s.List(ctx, "/p/", "", 0, 0); err != nil || len(kvs) != 11 {
		t.Fatalf("all: %d keys, %v", len(kvs), err)
	}
	kvs, _, _, err = s.List(ctx, "", "", 0, 0)
	ours := slices.DeleteFunc(kvs, func(kv storage.KV) bool { // a store may keep keys for itself
		return !strings.HasPrefix(kv.Key, "/p/") && kv.Key != "/q"
	})
	if err != nil || len(ours) != 12 {
		t.Fatalf("everything: %d keys, %v", len(ours), err)
	}
}

func watch(t *testing.T, ctx context.Context, s storage.Store) {
	start := must(t, ctx, s, "/a", "0", 0)
	one := must(t, ctx, s, "/a", "1", start)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches, err := s.Watch(ctx, "/", start)
	if err != nil {
		t.Fatal(err)
	}
	two := must(t, ctx, s, "/b", "2", 0)
	three, _, _, err := s.Delete(ctx, "/a", one)
	if err != nil {
		t.Fatal(err)
	}
	want := []storage.Event{
		{KV: storage.KV{Key: "/a", Value: []byte("1"), Revision: one}},
		{KV: storage.KV{Key: "/b", Value: []byte("2"), Revision: two}},
		{KV: storage.KV{Key: "/a", Revision: three}, Deleted: true},
	}
	at := start
	for len(want) > 0 {
		b, ok := <-batches
		if !ok || b.Err != nil {
			t.Fatalf("stream ended, %v; still want %v", b.Err, want)
		}
		if b.Revision < at {
			t.Fatalf("batch at %d after %d", b.Revision, at)
		}
		at = b.Revision
		for _, e := range b.Events {
			w := want[0]
			if e.Key != w.Key || e.Revision != w.Revision || e.Deleted != w.Deleted || !bytes.Equal(e.Value, w.Value) {
				t.Fatalf("event %+v, want %+v", e, w)
			}
			want = want[1:]
		}
	}
	cancel()
	for range batches {
	}
}

func compact(t *testing.T, ctx context.Context, s storage.Store) {
	one := must(t, ctx, s, "/a", "1", 0)
	two := must(t, ctx, s, "/a", "2", one)
	must(t, ctx, s, "/a", "3", two)
	if err := s.Compact(ctx, two); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := s.List(ctx, "/", "", 0, one); !errors.Is(err, storage.ErrCompacted) {
		t.Fatalf("list of a compacted revision: %v", err)
	}
	if _, _, _, err := s.List(ctx, "/", "", 0, two+1000); !errors.Is(err, storage.ErrFuture) {
		t.Fatalf("list of a future revision: %v", err)
	}
	batches, err := s.Watch(ctx, "/", one-1)
	if err != nil {
		t.Fatal(err)
	}
	if b := <-batches; !errors.Is(b.Err, storage.ErrCompacted) {
		t.Fatalf("watch from a compacted revision: %+v", b)
	}
}

// race has many writers on one key: each revision is won once.
func race(t *testing.T, ctx context.Context, s storage.Store) {
	const writers, rounds = 8, 20
	wins := make(chan int64, writers*rounds)
	done := make(chan error, writers)
	for range writers {
		go func() {
			for range rounds {
				for {
					kv, _, err := s.Get(ctx, "/n")
					if err != nil {
						done <- err
						return
					}
					var expect int64
					if kv != nil {
						expect = kv.Revision
					}
					rev, _, ok, err := s.Put(ctx, "/n", fmt.Append(nil, expect), expect, 0)
					if err != nil {
						done <- err
						return
					}
					if ok {
						wins <- rev
						break
					}
				}
			}
			done <- nil
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	seen := map[int64]bool{}
	for range writers * rounds {
		rev := <-wins
		if seen[rev] {
			t.Fatalf("revision %d was won twice", rev)
		}
		seen[rev] = true
	}
}
