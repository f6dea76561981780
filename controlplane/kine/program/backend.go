package main

import (
	"context"

	"github.com/k3s-io/kine/pkg/server"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// backend is kine's, with its answers made certain.
type backend struct{ server.Backend }

// Create asks whether the key is there at the revision it is said to have: kine
// takes a failed insert whose key it then does not find for a success.
func (b *backend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	rev, err := b.Backend.Create(ctx, key, value, lease)
	if err != nil {
		return rev, err
	}
	_, kv, err := b.Get(ctx, key, rev, true)
	if err != nil {
		return 0, err
	}
	if kv == nil || kv.ModRevision != rev {
		return 0, status.Error(codes.Unavailable, "the database did not take the write")
	}
	return rev, nil
}
