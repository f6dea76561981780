package main

import (
	"bytes"
	"context"

	"github.com/k3s-io/kine/pkg/server"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// backend is kine's, with its answers made certain and its connections bounded:
// a start asks for everything at once, and servers refuse more than about a
// hundred. The pool of connections itself would not do: on PostgreSQL kine
// inserts by a second one while it holds the first.
type backend struct {
	server.Backend
	writers, readers chan struct{}
}

// atOnce is how many write, and how many read, at a time.
const atOnce = 16

func bounded(b server.Backend) *backend {
	return &backend{b, make(chan struct{}, atOnce), make(chan struct{}, atOnce)}
}

// enter waits for a place among those, until leave.
func enter(ctx context.Context, among chan struct{}) (leave func(), err error) {
	select {
	case among <- struct{}{}:
		return func() { <-among }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *backend) Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	leave, err := enter(ctx, b.readers)
	if err != nil {
		return 0, nil, err
	}
	defer leave()
	return b.Backend.Get(ctx, key, revision, keysOnly)
}

func (b *backend) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	leave, err := enter(ctx, b.readers)
	if err != nil {
		return 0, nil, err
	}
	defer leave()
	return b.Backend.List(ctx, key, end, limit, revision, keysOnly)
}

func (b *backend) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	leave, err := enter(ctx, b.writers)
	if err != nil {
		return 0, nil, false, err
	}
	defer leave()
	return b.Backend.Update(ctx, key, value, revision, lease)
}

func (b *backend) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	leave, err := enter(ctx, b.writers)
	if err != nil {
		return 0, nil, false, err
	}
	defer leave()
	return b.Backend.Delete(ctx, key, revision)
}

// Create checks whether the key exists as the comparison demands: kine takes a failed
// insert whose key it then does not find for a success, and of a key that was
// deleted before it gives the revision of whatever was written last.
func (b *backend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	leave, err := enter(ctx, b.writers)
	if err != nil {
		return 0, err
	}
	defer leave()
	rev, err := b.Backend.Create(ctx, key, value, lease)
	if err != nil {
		return rev, err
	}
	_, kv, err := b.Get(ctx, key, rev, true)
	if err == nil && kv != nil && kv.ModRevision == rev {
		return rev, nil
	}
	_, kv, err = b.Get(ctx, key, 0, false)
	if err != nil {
		return 0, err
	}
	if kv != nil && kv.CreateRevision == kv.ModRevision && bytes.Equal(kv.Value, value) {
		return kv.ModRevision, nil
	}
	return 0, status.Error(codes.Unavailable, "the database may not have taken the write")
}
