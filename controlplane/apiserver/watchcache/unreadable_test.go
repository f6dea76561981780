package watchcache

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/storage"
)

// locked is a store one of whose values cannot be read for a while.
type locked struct {
	storage.Store
	key  string
	shut atomic.Bool
}

func (l *locked) open(kv *storage.KV) {
	if kv != nil && kv.Key == l.key && l.shut.Load() {
		kv.Value, kv.Err = nil, errors.New("locked")
	}
}

func (l *locked) Get(ctx context.Context, key string) (*storage.KV, int64, error) {
	kv, rev, err := l.Store.Get(ctx, key)
	l.open(kv)
	return kv, rev, err
}

func (l *locked) List(ctx context.Context, prefix, after string, limit int, at int64) ([]storage.KV, int64, bool, error) {
	kvs, rev, more, err := l.Store.List(ctx, prefix, after, limit, at)
	for i := range kvs {
		l.open(&kvs[i])
	}
	return kvs, rev, more, err
}

// TestUnlocked: what could not be read when the cache was filled is there soon
// after it can be, without anybody writing it.
func TestUnlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		store := &locked{Store: storage.NewMemory(), key: "/registry/secrets/a/one"}
		defer store.Close()
		run := func(each func(secrets *Resource)) {
			c := New(store, registry.Resources)
			running, end := context.WithCancel(ctx)
			done := make(chan error, 1)
			go func() { done <- c.Run(running) }()
			<-c.Ready()
			each(c.Resource(corev1.SchemeGroupVersion.WithResource("secrets")))
			end()
			<-done
		}
		run(func(secrets *Resource) {
			for _, name := range []string{"one", "two"} {
				if _, err := secrets.Create(ctx, "a/"+name, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}); err != nil {
					t.Fatal(err)
				}
			}
		})
		store.shut.Store(true)
		run(func(secrets *Resource) {
			var partial *PartialError
			if _, err := secrets.List(ctx, Query{}); !errors.As(err, &partial) || err.Error() != `unable to transform key "/registry/secrets/a/one": locked` {
				t.Errorf("listed: %v", err)
			}
			if l, err := secrets.List(ctx, Query{Namespace: "b"}); err != nil || len(l.Records) != 0 {
				t.Errorf("listed elsewhere: %v", err)
			}
			if _, err := secrets.Get(ctx, "a/two", ""); err != nil {
				t.Errorf("another: %v", err)
			}
			if _, err := secrets.Get(ctx, "a/one", ""); err == nil || err.Error() != "locked" {
				t.Errorf("got: %v", err)
			}
			<-time.After(time.Minute)
			if _, err := secrets.List(ctx, Query{}); !errors.As(err, &partial) {
				t.Errorf("a minute later: %v", err)
			}
			store.shut.Store(false)
			<-time.After(maxRereadDelay + time.Second)
			l, err := secrets.List(ctx, Query{})
			if err != nil || len(l.Records) != 2 {
				t.Errorf("when it can be read: %v, %v", l, err)
			}
			if secrets.faults.Load() != nil || secrets.cache.faulty.Load() {
				t.Error("it is looked at for ever")
			}
		})
	})
}

// TestPageBefore: a page fails only if it comes to what cannot be read before it
// is full, and what is not read counts among the rest: upstream's answers.
func TestPageBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		store := storage.NewMemory()
		defer store.Close()
		cache := New(store, registry.Resources)
		done := make(chan error, 1)
		go func() { done <- cache.Run(ctx) }()
		defer func() { cancel(); <-done }()
		<-cache.Ready()
		maps := cache.Resource(corev1.SchemeGroupVersion.WithResource("configmaps"))
		for _, name := range []string{"a", "b", "d", "e"} {
			if _, err := maps.Create(ctx, "pg/"+name, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "pg"}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, ok, err := store.Put(ctx, Root+"configmaps/pg/c", []byte("broken"), 0, 0); !ok || err != nil {
			t.Fatal(ok, err)
		}
		synctest.Wait()
		first, err := maps.List(ctx, Query{Namespace: "pg", Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name   string
			q      Query
			count  int   // -1: refused
			remain int64 // -1: this is all
		}{
			{"one", Query{Namespace: "pg", Limit: 1}, 1, 4},
			{"up to it", Query{Namespace: "pg", Limit: 2}, 2, 3},
			{"over it", Query{Namespace: "pg", Limit: 3}, -1, 0},
			{"far over it", Query{Namespace: "pg", Limit: 400}, -1, 0},
			{"all", Query{Namespace: "pg"}, -1, 0},
			{"the next", Query{Namespace: "pg", Limit: 1, Continue: first.Continue}, 1, 3},
			{"the next two", Query{Namespace: "pg", Limit: 2, Continue: first.Continue}, -1, 0},
			{"the rest", Query{Namespace: "pg", Continue: first.Continue}, -1, 0},
			{"elsewhere", Query{Namespace: "other", Limit: 1}, 0, -1},
			{"everywhere", Query{Limit: 2}, 2, 3},
		} {
			l, err := maps.List(ctx, c.q)
			var p *PartialError
			switch {
			case c.count < 0:
				if !errors.As(err, &p) || len(p.Faults) != 1 {
					t.Errorf("%s: %v, %v", c.name, l, err)
				}
			case err != nil || len(l.Records) != c.count || (l.Remaining == nil) != (c.remain < 0) || l.Remaining != nil && *l.Remaining != c.remain || (l.Continue == "") != (c.remain < 0):
				t.Errorf("%s: %+v, %v", c.name, l, err)
			}
		}
	})
}
