package watchcache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/storage"
)

// Root is the folder of all objects in the store.
const Root = "/registry/"

// catchUp is how long a read waits for the cache to reach the revision that it
// names before it is a 504, upstream's figure. One that the store itself named
// is worth a longer wait: upstream reads the store instead.
const catchUp = 3 * time.Second

// A Cache holds every object of every resource, fed by one watch of the store.
type Cache struct {
	store     storage.Store
	tables    atomic.Pointer[tables]
	tablesMu  sync.Mutex // orders changes of tables
	additions chan *addition
	reread    chan struct{} // values that could not be read may be readable now
	faulty    atomic.Bool   // there may be such values
	budget    *budget
	fresh     fresh
	ages      ages
	ready     chan struct{}

	touched []*Resource // the applier's: who has news in this batch
	forgot  time.Time   // the applier's: when what is old was forgotten last

	newest   func() (revision int64, ok bool) // the store's, without asking; nil when it cannot tell
	revision atomic.Int64                     // everything up to it is published
	waiting  atomic.Int32
	mu       sync.Mutex
	waiters  map[chan struct{}]int64
}

// New makes a cache of what resources declares. It does nothing before Run.
func New(store storage.Store, resources []registry.Resource) *Cache {
	c := &Cache{
		store:     store,
		additions: make(chan *addition),
		reread:    make(chan struct{}, 1),
		budget:    &budget{limit: defaultBudget},
		fresh:     fresh{ask: store.Revision},
		newest:    storage.Newest(store),
		ready:     make(chan struct{}),
		waiters:   map[chan struct{}]int64{},
	}
	t := &tables{map[schema.GroupVersionResource]*Resource{}, map[string]*Resource{}}
	for _, res := range resources {
		if res.IsVirtual() {
			continue
		}
		s := res.Storage()
		r := t.prefixes[s.Prefix]
		if r == nil {
			r = newResource(c, s.Hub)
			t.prefixes[s.Prefix] = r
		}
		t.resources[res.GVR()] = r
	}
	c.tables.Store(t)
	return c
}

// Resource is the cache of one resource, nil for one that is not stored. Two
// versions of the same objects share one.
func (c *Cache) Resource(gvr schema.GroupVersionResource) *Resource {
	return c.tables.Load().resources[gvr]
}

// Stored is each resource that has a place of its own in the store.
func (c *Cache) Stored() map[schema.GroupResource]*Resource {
	all := map[schema.GroupResource]*Resource{}
	for _, r := range c.tables.Load().prefixes {
		all[r.kind.GVR().GroupResource()] = r
	}
	return all
}

// Ready is closed once the store has been read whole.
func (c *Cache) Ready() <-chan struct{} { return c.ready }

// Revision is the newest revision published.
func (c *Cache) Revision() int64 { return c.revision.Load() }

// Run follows the store until ctx ends. When the history it needs is gone, or
// the store lost it, it reads everything anew, and watchers get 410.
func (c *Cache) Run(ctx context.Context) error {
	var b backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := c.load(ctx)
		if err == nil {
			select {
			case <-c.ready:
			default:
				close(c.ready)
			}
			err = c.follow(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		b.pause(ctx, "watch the store", began, err)
	}
	return nil
}

// page bounds one read of the first load.
const page = 10000

// load reads the whole store as of one revision.
func (c *Cache) load(ctx context.Context) error {
	loaded, faults := map[*Resource]*tree{}, map[*Resource][]*UnreadableError{}
	for _, r := range c.tables.Load().prefixes {
		loaded[r] = &tree{}
	}
	var at int64
	after := ""
	for {
		kvs, rev, more, err := c.store.List(ctx, Root, after, page, at)
		if err != nil {
			return fmt.Errorf("read the store: %w", err)
		}
		at = rev
		for _, kv := range kvs {
			r, key := c.find(kv.Key)
			if r == nil || loaded[r] == nil { // of no kind, or of one added just now
				continue
			}
			rec, err := r.codec.read(key, kv)
			if err != nil {
				faults[r] = append(faults[r], err)
				continue
			}
			loaded[r].Set(key, rec)
		}
		if !more {
			break
		}
		after = kvs[len(kvs)-1].Key
	}
	for r, t := range loaded {
		r.replace(ctx, t, at, faults[r])
	}
	c.publish(at)
	return nil
}

// follow applies the store's changes from the loaded revision on.
func (c *Cache) follow(ctx context.Context) error {
	var b backoff
	for {
		began := time.Now()
		err := c.stream(ctx)
		if errors.Is(err, storage.ErrCompacted) || errors.Is(err, storage.ErrFuture) || ctx.Err() != nil {
			return err
		}
		b.pause(ctx, "watch of the store broke, resuming", began, err)
	}
}

func (c *Cache) stream(ctx context.Context) error {
	look := rereader{c: c}
	defer look.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches, err := c.store.Watch(ctx, "", c.revision.Load())
	if err != nil {
		return err
	}
	for {
		select {
		case batch, ok := <-batches:
			if !ok {
				return errors.New("stream ended")
			}
			if batch.Err != nil {
				return batch.Err
			}
			c.apply(ctx, batch)
		case <-look.due():
			look.begin(ctx)
		case <-c.reread:
			look.begin(ctx)
		case <-look.done:
			look.ended()
		case a := <-c.additions:
			a.done <- c.join(ctx, a.resource)
		}
	}
}

func (c *Cache) apply(ctx context.Context, batch storage.Batch) {
	seen := c.revision.Load()
	// Consecutive events of one resource are published together.
	for i := 0; i < len(batch.Events); {
		r, _ := c.find(batch.Events[i].Key)
		j := i + 1
		for j < len(batch.Events) {
			if next, _ := c.find(batch.Events[j].Key); next != r {
				break
			}
			j++
		}
		if r != nil && r.apply(ctx, batch.Events[i:j], seen) {
			c.touched = append(c.touched, r)
		}
		i = j
	}
	c.publish(batch.Revision)
	for _, r := range c.touched {
		if r.broken != nil {
			r.resetUnreadable(ctx, batch.Revision)
		}
		r.wake()
	}
	c.touched = c.touched[:0]
	// Some batch comes every few seconds: nodes renew their leases.
	if now := time.Now(); now.Sub(c.forgot) >= time.Minute {
		c.forgot = now
		for _, r := range c.tables.Load().prefixes {
			r.forgetOld(now)
		}
	}
}

// find gives the resource a store key belongs to, and the rest of the key.
func (c *Cache) find(key string) (*Resource, string) {
	rest, ok := strings.CutPrefix(key, Root)
	if !ok {
		return nil, ""
	}
	one := strings.IndexByte(rest, '/')
	if one < 0 {
		return nil, ""
	}
	t := c.tables.Load()
	if r := t.prefixes[rest[:one]]; r != nil {
		return r, rest[one+1:]
	}
	two := strings.IndexByte(rest[one+1:], '/')
	if two < 0 {
		return nil, ""
	}
	if r := t.prefixes[rest[:one+1+two]]; r != nil {
		return r, rest[one+two+2:]
	}
	return nil, ""
}

// publish says that everything up to rev can be read.
func (c *Cache) publish(rev int64) {
	if rev <= c.revision.Load() {
		return
	}
	c.revision.Store(rev)
	if c.waiting.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for ch, want := range c.waiters {
		if want <= rev {
			close(ch)
			delete(c.waiters, ch)
		}
	}
}

// wait returns once everything up to rev can be read.
func (c *Cache) wait(ctx context.Context, rev int64, timeout time.Duration) error {
	if c.revision.Load() >= rev {
		return nil
	}
	ch := make(chan struct{})
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	c.mu.Lock()
	if c.revision.Load() >= rev {
		c.mu.Unlock()
		return nil
	}
	c.waiters[ch] = rev
	c.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	var err error
	select {
	case <-ch:
		return nil
	case <-timer.C:
		err = &TooNewError{rev, c.revision.Load()}
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.mu.Lock()
	delete(c.waiters, ch)
	c.mu.Unlock()
	return err
}

// waitConsistent returns once everything acknowledged before the call can be
// read.
func (c *Cache) waitConsistent(ctx context.Context) error {
	select {
	case <-c.ready:
	default:
		return ErrNotReady
	}
	rev, err := c.fresh.revision(ctx)
	if err != nil {
		return fmt.Errorf("ask the store for its revision: %w", err)
	}
	return c.wait(ctx, rev, askTimeout)
}

// Sync returns once everything acknowledged before the call can be read.
func (c *Cache) Sync(ctx context.Context) error { return c.waitConsistent(ctx) }

// waitForOne is waitFor for a read of one object. Lists ask even a store that need
// not be asked: a thousand at once would else start at one instant, each with
// buffers of its own.
func (c *Cache) waitForOne(ctx context.Context, resourceVersion string) error {
	if resourceVersion == "" && c.newest != nil {
		select {
		case <-c.ready:
			if revision, ok := c.newest(); ok {
				return c.wait(ctx, revision, askTimeout)
			}
		default:
		}
	}
	return c.waitFor(ctx, resourceVersion)
}

// waitFor does what a request's resourceVersion asks for.
func (c *Cache) waitFor(ctx context.Context, resourceVersion string) error {
	select {
	case <-c.ready:
	default:
		return ErrNotReady
	}
	switch resourceVersion {
	case "":
		return c.waitConsistent(ctx)
	case "0":
		return nil
	}
	rev, err := parseRevision(resourceVersion)
	if err != nil {
		return err
	}
	return c.wait(ctx, rev, catchUp)
}
