package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// podsSeen are the pods that were as wanted once.
type podsSeen struct {
	mu      sync.Mutex
	at      map[string]time.Time
	gone    map[string]time.Time
	changed chan struct{}
}

// watchPods notes when each pod is first as wanted, and when it is gone.
func watchPods(ctx context.Context, client kubernetes.Interface, which fields.Selector, wanted func(*corev1.Pod) bool) (*podsSeen, func()) {
	s := &podsSeen{at: map[string]time.Time{}, gone: map[string]time.Time{}, changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(ctx)
	note := func(m map[string]time.Time, name string) {
		s.mu.Lock()
		if _, known := m[name]; !known {
			m[name] = time.Now()
		}
		s.mu.Unlock()
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	look := func(obj any) {
		if p, ok := obj.(*corev1.Pod); ok && wanted(p) {
			note(s.at, p.Name)
		}
	}
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", namespace, which)
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: lw, ObjectType: &corev1.Pod{}, Handler: cache.ResourceEventHandlerFuncs{
		AddFunc:    look,
		UpdateFunc: func(_, obj any) { look(obj) },
		DeleteFunc: func(obj any) {
			if p, ok := obj.(*corev1.Pod); ok {
				note(s.gone, p.Name)
			}
		},
	}})
	var wg sync.WaitGroup
	wg.Go(func() { controller.RunWithContext(ctx) })
	cache.WaitForCacheSync(ctx.Done(), controller.HasSynced)
	return s, func() { cancel(); wg.Wait() }
}

// await waits until n pods were as wanted.
func (s *podsSeen) await(ctx context.Context, n int) error {
	return s.until(ctx, func() (string, bool) { return fmt.Sprintf("%d pods of %d", len(s.at), n), len(s.at) >= n })
}

// when waits until one pod was as wanted, or gone.
func (s *podsSeen) when(ctx context.Context, m map[string]time.Time, name string) (at time.Time, err error) {
	err = s.until(ctx, func() (string, bool) { at = m[name]; return "pod " + name, !at.IsZero() })
	return at, err
}

func (s *podsSeen) until(ctx context.Context, done func() (string, bool)) error {
	limit := time.After(3 * time.Minute)
	for {
		s.mu.Lock()
		what, ok := done()
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("after 3 minutes: %s", what)
		}
	}
}
