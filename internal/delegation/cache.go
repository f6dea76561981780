package delegation

import (
	"context"
	"sync"
	"time"
)

const (
	// maxCached answers are remembered of each kind.
	maxCached = 1024
	// maxReviews are asked of the API server at once, of each kind: requests with
	// unknown tokens, which anyone can send, must not keep it busy.
	maxReviews = 32
	// reviewTime bounds one question.
	reviewTime = 10 * time.Second
)

// A limit is how many reviews are under way.
type limit struct {
	once   sync.Once
	places chan struct{}
}

func (l *limit) enter(ctx context.Context) (leave func(), err error) {
	l.once.Do(func() { l.places = make(chan struct{}, maxReviews) })
	select {
	case l.places <- struct{}{}:
		return func() { <-l.places }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// A cache remembers answers for a while, a bounded number of them, and bounds how
// many are asked for at once.
type cache[T any] struct {
	limit limit
	mu    sync.Mutex
	all   map[string]entry[T]
}

type entry[T any] struct {
	v     T
	until time.Time
}

func (c *cache[T]) get(ctx context.Context, key string, ask func(context.Context) (T, time.Duration, error)) (T, error) {
	now := time.Now()
	c.mu.Lock()
	e, ok := c.all[key]
	c.mu.Unlock()
	if ok && now.Before(e.until) {
		return e.v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTime)
	defer cancel()
	var none T
	leave, err := c.limit.enter(ctx)
	if err != nil {
		return none, err
	}
	v, life, err := ask(ctx)
	leave()
	if err != nil {
		return none, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) >= maxCached {
		for k, e := range c.all {
			if now.After(e.until) {
				delete(c.all, k)
			}
		}
		if len(c.all) >= maxCached {
			clear(c.all)
		}
	}
	if c.all == nil {
		c.all = map[string]entry[T]{}
	}
	c.all[key] = entry[T]{v, now.Add(life)}
	return v, nil
}
