package storage

import (
	"context"
	"errors"
	"sync/atomic"
)

// A Sizer is a store that knows how large it is on disk.
type Sizer interface {
	Size(ctx context.Context) (int64, error)
}

// ErrNoSize says that a store does not know how large it is.
var ErrNoSize = errors.New("the store does not tell its size")

// Size is how large the store is on disk.
func Size(ctx context.Context, s Store) (int64, error) {
	if able, ok := below[Sizer](s); ok {
		return able.Size(ctx)
	}
	return 0, ErrNoSize
}

// Newest finds how the store gives its newest revision, linearizably, without
// asking anybody; nil when it has no such way. ok is false while it has to be
// asked.
func Newest(s Store) func() (revision int64, ok bool) {
	if able, ok := below[interface{ Newest() (int64, bool) }](s); ok {
		return able.Newest
	}
	return nil
}

// InFlight counts the writes on their way to s. Their callers keep it, since s may
// wait for them, to do many at once; nil when it does not.
func InFlight(s Store) *atomic.Int64 {
	if able, ok := below[interface{ InFlight() *atomic.Int64 }](s); ok {
		return able.InFlight()
	}
	return nil
}

// below is s, or what it wraps, that can do T.
func below[T any](s Store) (able T, ok bool) {
	for {
		if able, ok := s.(T); ok {
			return able, true
		}
		outer, ok := s.(interface{ Unwrap() Store })
		if !ok {
			return able, false
		}
		s = outer.Unwrap()
	}
}
