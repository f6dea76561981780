package watchcache

import (
	"context"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/registry"
)

// tables is which resources are cached. It is never changed; another one takes
// its place.
type tables struct {
	resources map[schema.GroupVersionResource]*Resource
	prefixes  map[string]*Resource // by folder under /registry/
}

// An addition is a resource that waits for the applier, between whose batches
// alone it can be read whole without missing a change.
type addition struct {
	resource *Resource
	done     chan error
}

// At is the cache of the resource stored in a folder under /registry/, nil when
// there is none.
func (c *Cache) At(prefix string) *Resource { return c.tables.Load().prefixes[prefix] }

// Add caches one more resource and returns once it can be read. One that is
// stored in the same folder is kept.
func (c *Cache) Add(ctx context.Context, kind registry.Resource) error {
	if c.At(kind.Storage().Prefix) != nil {
		return nil
	}
	a := &addition{newResource(c, kind), make(chan error, 1)}
	select {
	case c.additions <- a:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-a.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join reads a new resource as of the revision applied last, and shows it.
func (c *Cache) join(ctx context.Context, r *Resource) error {
	at, after := c.revision.Load(), ""
	t := &tree{}
	var faults []*UnreadableError
	for {
		kvs, _, more, err := c.store.List(ctx, Root+r.codec.prefix+"/", after, page, at)
		if err != nil {
			return fmt.Errorf("read %s%s: %w", Root, r.codec.prefix, err)
		}
		for _, kv := range kvs {
			after = kv.Key
			key := kv.Key[len(Root)+len(r.codec.prefix)+1:]
			rec, err := r.codec.read(key, kv)
			if err != nil {
				faults = append(faults, err)
				continue
			}
			t.Set(key, rec)
		}
		if !more {
			break
		}
	}
	r.replace(ctx, t, at, faults)
	c.changeTables(func(t *tables) { t.prefixes[r.codec.prefix] = r })
	return nil
}

// Remove forgets the resource of a folder and ends its watches.
func (c *Cache) Remove(prefix string) {
	r := c.At(prefix)
	if r == nil {
		return
	}
	c.changeTables(func(t *tables) { delete(t.prefixes, prefix) })
	r.Disconnect()
}

func (c *Cache) changeTables(change func(*tables)) {
	c.tablesMu.Lock()
	defer c.tablesMu.Unlock()
	old := c.tables.Load()
	t := &tables{old.resources, maps.Clone(old.prefixes)}
	change(t)
	c.tables.Store(t)
}

// Disconnect ends all watches: their clients come back to what is served now.
func (r *Resource) Disconnect() {
	r.epoch.Add(1)
	r.main.wakeNow()
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, g := range r.groups {
		g.wakeNow()
	}
}

// Empty says that there is no object.
func (r *Resource) Empty() bool { return r.state.Load().tree.Len() == 0 }
