// Package storage is the only door to the datastore: a compare-and-put
// key-value store with one ordered history. It reads and writes etcd (or the
// memory twin, for tests); everything above it sees keys, bytes and revisions.
package storage

import (
	"context"
	"errors"
	"time"
)

// A KV is one key at one revision. Value is exactly what was put; nobody may
// change it.
type KV struct {
	Key      string
	Value    []byte
	Revision int64 // of its last put
	Created  int64 // revision of the put that created it
	Err      error // why nobody can read the value, which is nil then
}

// An Event is one change of one key. For a delete, Value is nil, and Revision
// is the delete's.
type Event struct {
	KV
	Deleted bool
}

// A Batch is all events of one or more consecutive revisions, in order. A
// batch without events is progress: the store stands at Revision. A batch with
// Err is the last one: ErrCompacted when the history no longer reaches back, or
// the reason the stream broke.
type Batch struct {
	Events   []Event
	Revision int64
	Err      error
}

// ErrCompacted says that a revision is older than the history kept.
var ErrCompacted = errors.New("revision has been compacted")

// ErrFuture says that a revision is newer than the store.
var ErrFuture = errors.New("revision is in the future")

// ErrTooLarge says that a value is over the store's limit for one request.
var ErrTooLarge = errors.New("value is too large for the store")

// A Store is a key-value store with one history of revisions. All methods may
// be called at once. An acknowledged write is on disk.
type Store interface {
	// Get returns the key's newest value, nil when there is none, and the
	// store's revision at that moment. It is linearizable.
	Get(ctx context.Context, key string) (*KV, int64, error)

	// List returns the keys with prefix, in key order, as of one revision:
	// the newest when at is 0. after, when not empty, skips keys up to and
	// including it. At most limit keys are returned, all when limit is 0; more
	// says that there were others.
	List(ctx context.Context, prefix, after string, limit int, at int64) (kvs []KV, rev int64, more bool, err error)

	// Put stores value under key if the key's last revision is expect (0: the
	// key must not exist) and returns the new revision. On a mismatch ok is
	// false and current is what stands there (nil: nothing). ttl > 0 lets
	// the key vanish after that time, rounded up to seconds.
	Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (rev int64, current *KV, ok bool, err error)

	// Delete removes key if its last revision is expect. rev is the revision
	// of the delete. On a mismatch ok is false and current is what stands
	// there (nil: nothing).
	Delete(ctx context.Context, key string, expect int64) (rev int64, current *KV, ok bool, err error)

	// Revision is the store's newest revision, linearizably.
	Revision(ctx context.Context) (int64, error)

	// Watch streams every change under prefix after revision from, until ctx
	// ends or a batch carries Err. Sends of batches block; the reader must be
	// quick. Progress batches come at least every few seconds.
	Watch(ctx context.Context, prefix string, from int64) (<-chan Batch, error)

	// Compact forgets history before rev.
	Compact(ctx context.Context, rev int64) error

	Close() error
}
