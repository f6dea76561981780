// Package encryption encrypts values at rest, in upstream's form, so
// that either program reads what the other wrote. It reads the
// EncryptionConfiguration file, and sits between the watch cache and a store:
// it encrypts with the resource's first key, and decrypts with whichever key
// fits.
package encryption

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/storage"
	"knarr/internal/run"
)

// A Store seals what another store keeps. Its other methods are the other's.
type Store struct {
	storage.Store
	keys     *Keys
	resource func(key string) (schema.GroupResource, bool)
}

// New returns store behind keys. resource says what a key of the store belongs
// to; keys that belong to nothing are left as they are.
func New(store storage.Store, keys *Keys, resource func(key string) (schema.GroupResource, bool)) *Store {
	return &Store{store, keys, resource}
}

// Unwrap is the store behind the keys.
func (s *Store) Unwrap() storage.Store { return s.Store }

// chain is the keys of a value, nil for one that is not to be touched.
func (s *Store) chain(key string) *chain {
	gr, ok := s.resource(key)
	if !ok {
		return nil
	}
	return s.keys.chain(gr)
}

// open puts the plain value in the place of the sealed one, or the reason why
// there is none: one value that nobody can read hides no other.
func (s *Store) open(kv *storage.KV) {
	if kv == nil || kv.Value == nil {
		return
	}
	c := s.chain(kv.Key)
	if c == nil {
		return
	}
	kv.Value, _, kv.Err = c.open(kv.Value, []byte(kv.Key))
}

func (s *Store) Get(ctx context.Context, key string) (*storage.KV, int64, error) {
	kv, rev, err := s.Store.Get(ctx, key)
	s.open(kv)
	return kv, rev, err
}

func (s *Store) List(ctx context.Context, prefix, after string, limit int, at int64) ([]storage.KV, int64, bool, error) {
	kvs, rev, more, err := s.Store.List(ctx, prefix, after, limit, at)
	for i := range kvs {
		s.open(&kvs[i])
	}
	return kvs, rev, more, err
}

func (s *Store) Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, *storage.KV, bool, error) {
	if c := s.chain(key); c != nil {
		sealed, err := c.seal(value, []byte(key))
		if err != nil {
			return 0, nil, false, fmt.Errorf("encrypt %s: %w", key, err)
		}
		value = sealed
	}
	rev, current, ok, err := s.Store.Put(ctx, key, value, expect, ttl)
	s.open(current)
	return rev, current, ok, err
}

func (s *Store) Delete(ctx context.Context, key string, expect int64) (int64, *storage.KV, bool, error) {
	rev, current, ok, err := s.Store.Delete(ctx, key, expect)
	s.open(current)
	return rev, current, ok, err
}

func (s *Store) Watch(ctx context.Context, prefix string, from int64) (<-chan storage.Batch, error) {
	ctx, cancel := context.WithCancel(ctx)
	in, err := s.Store.Watch(ctx, prefix, from)
	if err != nil {
		cancel()
		return nil, err
	}
	out := make(chan storage.Batch)
	run.Go("store: decrypt a watch", func() {
		defer close(out)
		defer cancel()
		for b := range in {
			for i := range b.Events {
				s.open(&b.Events[i].KV)
			}
			select {
			case out <- b:
			case <-ctx.Done():
				return
			}
			if b.Err != nil {
				return
			}
		}
	})
	return out, nil
}

// Stale says that key's value is not sealed with the key that writes.
func (s *Store) Stale(ctx context.Context, key string) (bool, error) {
	c := s.chain(key)
	if c == nil {
		return false, nil
	}
	kv, _, err := s.Store.Get(ctx, key)
	if err != nil || kv == nil {
		return false, err
	}
	_, stale, err := c.open(kv.Value, []byte(key))
	return stale, err
}
