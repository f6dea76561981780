package storage

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Timed calls observe after every request to the store: get, list, create, update or
// delete, of what, how long it took, and whether it failed.
func Timed(s Store, resource func(key string) (schema.GroupResource, bool), observe func(operation string, of schema.GroupResource, took time.Duration, err error)) Store {
	return &timed{s, resource, observe}
}

type timed struct {
	Store
	resource func(key string) (schema.GroupResource, bool)
	observe  func(operation string, of schema.GroupResource, took time.Duration, err error)
}

// Unwrap is the store that is timed.
func (t *timed) Unwrap() Store { return t.Store }

func (t *timed) tell(operation, key string, began time.Time, err error) {
	if gr, ok := t.resource(key); ok {
		t.observe(operation, gr, time.Since(began), err)
	}
}

func (t *timed) Get(ctx context.Context, key string) (*KV, int64, error) {
	began := time.Now()
	kv, rev, err := t.Store.Get(ctx, key)
	t.tell("get", key, began, err)
	return kv, rev, err
}

func (t *timed) List(ctx context.Context, prefix, after string, limit int, at int64) ([]KV, int64, bool, error) {
	began := time.Now()
	kvs, rev, more, err := t.Store.List(ctx, prefix, after, limit, at)
	t.tell("list", prefix, began, err)
	return kvs, rev, more, err
}

func (t *timed) Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, *KV, bool, error) {
	operation := "update"
	if expect == 0 {
		operation = "create"
	}
	began := time.Now()
	rev, current, ok, err := t.Store.Put(ctx, key, value, expect, ttl)
	t.tell(operation, key, began, err)
	return rev, current, ok, err
}

func (t *timed) Delete(ctx context.Context, key string, expect int64) (int64, *KV, bool, error) {
	began := time.Now()
	rev, current, ok, err := t.Store.Delete(ctx, key, expect)
	t.tell("delete", key, began, err)
	return rev, current, ok, err
}
