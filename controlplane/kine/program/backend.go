package main

import (
	"bytes"
	"context"

	"github.com/k3s-io/kine/pkg/server"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// backend is kine's, with its answers made certain.
type backend struct{ server.Backend }

// Create asks whether the key is there as it is said to be: kine takes a failed
// insert whose key it then does not find for a success, and of a key that was
// deleted before it gives the revision of whatever was written last.
func (b *backend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
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
