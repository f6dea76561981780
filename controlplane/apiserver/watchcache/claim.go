package watchcache

import (
	"context"
	"fmt"
	"time"
)

// A claim is a key of the store that one API server at a time can hold. One that
// it cannot let go of vanishes in time.

// Claim takes a key; false when it is held.
func (c *Cache) Claim(ctx context.Context, key string, life time.Duration) (bool, error) {
	_, _, ok, err := c.store.Put(ctx, key, []byte("claimed"), 0, life)
	if err != nil {
		return false, fmt.Errorf("claim %s: %w", key, err)
	}
	return ok, nil
}

// Unclaim lets go of a key that this server holds.
func (c *Cache) Unclaim(ctx context.Context, key string) error {
	have, _, err := c.store.Get(ctx, key)
	if err == nil && have != nil {
		_, _, _, err = c.store.Delete(ctx, key, have.Revision)
	}
	if err != nil {
		return fmt.Errorf("let go of %s: %w", key, err)
	}
	return nil
}
