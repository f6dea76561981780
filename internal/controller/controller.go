// Package controller is the reconcile engine, written once: one reconcile
// function behind one work queue fed by informers. It reads informers, and
// writes only what the Reconcile function it is given writes.
package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"knarr/internal/informer"
	"knarr/internal/run"
)

// A Controller calls Reconcile for every key its Sources yield, never twice
// at once for one key. Everything it owns is born and dies inside Run, so
// losing and regaining leadership is Run again.
type Controller[K comparable] struct {
	Name string
	// Workers is how many keys are reconciled at once. Default 1.
	Workers int
	Sources []Source[K]
	// Feeds yield keys that no informer's events tell. Each blocks until ctx
	// ends; reconciling begins once all have called ready.
	Feeds []func(ctx context.Context, ready func(), add func(K)) error
	// RetryDelay bounds the growing delay after errors: the first, and the longest.
	// Default 5ms and 1000s. Without a first of its own, all keys together are tried again
	// ten times a second, and whatever that makes of it, none later than the longest.
	RetryDelay [2]time.Duration
	// Reconcile makes the world as key's object says. It never asks what
	// happened. again > 0 asks for another call after that time; an error
	// asks for one after a growing delay, or after its own RetryAfter.
	Reconcile func(ctx context.Context, key K) (again time.Duration, err error)
}

// Existing makes a Reconcile of fn, which gets the object of the key from store;
// a key whose object is gone needs nothing.
func Existing[T any](store cache.Store, fn func(ctx context.Context, obj T) (again time.Duration, err error)) func(context.Context, cache.ObjectName) (time.Duration, error) {
	return func(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
		obj, ok, err := store.GetByKey(key.String())
		if err != nil || !ok {
			return 0, err
		}
		return fn(ctx, obj.(T))
	}
}

// SetWorkers changes how many keys are reconciled at once, before Run.
func (c *Controller[K]) SetWorkers(n int) { c.Workers = n }

// A Source turns the events of one informer into keys. With nil Keys it is
// only waited for.
type Source[K comparable] struct {
	Informer cache.SharedIndexInformer
	Keys     func(metav1.Object) []K
	// Delay is how long a key waits for more events, which it is reconciled for once.
	Delay time.Duration
}

// Run reconciles until ctx is done. It returns once its workers have.
func (c *Controller[K]) Run(ctx context.Context) error {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		c.limiter(),
		workqueue.TypedRateLimitingQueueConfig[K]{Name: c.Name})
	ctx, cancel := context.WithCancelCause(ctx)
	var wg run.Group
	defer wg.Wait()
	defer queue.ShutDown()
	defer cancel(nil)

	w := &workers[K]{c: c, queue: queue, failures: Failures[K]{Name: c.Name}}
	var fed sync.WaitGroup
	for _, feed := range c.Feeds {
		fed.Add(1)
		ready := sync.OnceFunc(fed.Done)
		wg.Go(c.Name+": feed", func() {
			defer ready()
			if err := run.Catch(c.Name+": feed", func() error { return feed(ctx, ready, queue.Add) }); err != nil {
				cancel(fmt.Errorf("%s: %w", c.Name, err))
			}
		})
	}
	synced := make([]cache.DoneChecker, 0, len(c.Sources))
	for _, s := range c.Sources {
		reg, err := s.Informer.AddEventHandler(enqueue(queue, s.Keys, s.Delay))
		if err != nil {
			return fmt.Errorf("watch for %s: %w", c.Name, err)
		}
		defer func() { _ = s.Informer.RemoveEventHandler(reg) }()
		synced = append(synced, reg.HasSyncedChecker())
	}
	if !cache.WaitFor(ctx, "", synced...) {
		return cause(ctx)
	}
	fed.Wait()
	w.begin(ctx, &wg)
	<-ctx.Done()
	return cause(ctx)
}

// workers reconcile what the queue has: one at first, and another each time that none is
// left to wait for the next key, so that a controller with little to do is one goroutine.
type workers[K comparable] struct {
	c        *Controller[K]
	queue    workqueue.TypedRateLimitingInterface[K]
	failures Failures[K]
	began    atomic.Int32
	waiting  atomic.Int32
}

func (w *workers[K]) begin(ctx context.Context, wg *run.Group) {
	if w.began.Add(1) > int32(max(w.c.Workers, 1)) {
		w.began.Add(-1)
		return
	}
	w.waiting.Add(1)
	wg.Go(w.c.Name, func() {
		for {
			key, quit := w.queue.Get()
			if left := w.waiting.Add(-1); quit {
				return
			} else if left == 0 {
				w.begin(ctx, wg)
			}
			w.one(ctx, key)
			w.waiting.Add(1)
		}
	})
}

// limiter is what delays the next try of a key that failed.
func (c *Controller[K]) limiter() workqueue.TypedRateLimiter[K] {
	switch first, longest := c.RetryDelay[0], c.RetryDelay[1]; {
	case longest == 0:
		return workqueue.DefaultTypedControllerRateLimiter[K]()
	case first == 0:
		return workqueue.NewTypedWithMaxWaitRateLimiter(workqueue.DefaultTypedControllerRateLimiter[K](), longest)
	default:
		return workqueue.NewTypedItemExponentialFailureRateLimiter[K](first, longest)
	}
}

// cause is why ctx ended, nil if it was asked to.
func cause(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// An error may set its own delay, within these.
const minRetryAfter, maxRetryAfter = time.Second, 10 * time.Minute

func (w *workers[K]) one(ctx context.Context, key K) {
	queue := w.queue
	defer queue.Done(key)
	again, err := w.c.guarded(ctx, key)
	if err == nil {
		w.failures.Forget(key)
	}
	switch {
	case err != nil && ctx.Err() == nil:
		if !apierrors.IsConflict(err) { // the next try sees the newer object
			w.failures.Log(ctx, key, err)
		}
		if fixed, ok := errors.AsType[interface {
			error
			RetryAfter() time.Duration
		}](err); ok {
			if after := fixed.RetryAfter(); after > 0 {
				queue.AddAfter(key, min(max(after, minRetryAfter), maxRetryAfter))
				return
			}
		}
		queue.AddRateLimited(key)
	case again > 0:
		queue.Forget(key)
		queue.AddAfter(key, again)
	default:
		queue.Forget(key)
	}
}

// guarded turns a panic into an error: one bad object must not end a process
// that holds the whole cluster.
func (c *Controller[K]) guarded(ctx context.Context, key K) (again time.Duration, err error) {
	err = run.Catch(c.Name, func() (err error) {
		again, err = c.Reconcile(ctx, key)
		return err
	})
	return again, err
}

// enqueue adds the keys of each object an event brings.
func enqueue[K comparable](queue workqueue.TypedDelayingInterface[K], keys func(metav1.Object) []K, delay time.Duration) cache.ResourceEventHandler {
	add := func(obj any) {
		m, ok := informer.Object(obj).(metav1.Object)
		if keys == nil || !ok {
			return
		}
		for _, key := range keys(m) {
			queue.AddAfter(key, delay) // at once without one
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: add, DeleteFunc: add,
		UpdateFunc: func(old, new any) { add(old); add(new) },
	}
}

// Self yields the name of the object itself.
func Self(inf cache.SharedIndexInformer) Source[cache.ObjectName] {
	return Source[cache.ObjectName]{Informer: inf, Keys: func(o metav1.Object) []cache.ObjectName {
		return []cache.ObjectName{cache.MetaObjectToName(o)}
	}}
}

// IgnoreNotFound forgives that an object that was to be changed is not there any
// more: its own event says so, if that matters.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
