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
			<-time.After(lastLook + time.Second)
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
