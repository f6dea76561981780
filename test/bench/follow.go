package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// A follower has what it follows told to a function, one object at a time.
type follower struct {
	mu      sync.Mutex
	changed chan struct{}
	stop    func()
}

// follow calls see for every object of a resource in a namespace, or of the cluster, and
// for each change, until stop. It returns when the first list has been seen.
func follow[T runtime.Object](ctx context.Context, client cache.Getter, resource, namespace string, which fields.Selector, see func(object T, gone bool)) *follower {
	f := &follower{changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(ctx)
	look := func(obj any, gone bool) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		o, ok := obj.(T)
		if !ok {
			return
		}
		f.mu.Lock()
		see(o, gone)
		f.mu.Unlock()
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
	var kind T
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client, resource, namespace, which), ObjectType: kind,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { look(obj, false) },
			UpdateFunc: func(_, obj any) { look(obj, false) },
			DeleteFunc: func(obj any) { look(obj, true) },
		},
	})
	var wg sync.WaitGroup
	wg.Go(func() { controller.RunWithContext(ctx) })
	f.stop = func() { cancel(); wg.Wait() }
	cache.WaitForCacheSync(ctx.Done(), controller.HasSynced)
	return f
}

// until waits for done, which says what it waits for and is asked after each change.
func (f *follower) until(ctx context.Context, limit time.Duration, done func() (string, bool)) error {
	late := time.After(limit)
	for {
		f.mu.Lock()
		what, ok := done()
		f.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-f.changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return fmt.Errorf("after %s: %s", limit, what)
		}
	}
}
