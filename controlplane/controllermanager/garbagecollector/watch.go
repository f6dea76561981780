package garbagecollector

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"
)

const (
	// syncWait is how long an unanswering resource may hold up the rest.
	syncWait = 30 * time.Second
	// rediscover is how often the resources are listed though nothing tells
	// that they changed.
	rediscover = 5 * time.Minute
)

// ignored are resources that own nothing, are owned by nothing, and are many.
var ignored = []schema.GroupResource{{Resource: "events"}, {Group: "events.k8s.io", Resource: "events"}}

// telling are the resources whose objects bring resources.
var telling = []schema.GroupResource{
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
	{Group: "apiregistration.k8s.io", Resource: "apiservices"},
}

// A monitor watches one resource.
type monitor struct {
	stop   func()
	synced <-chan struct{}
	done   <-chan struct{}
}

// watch keeps the graph up to date with all resources there are.
func (c *collector) watch(ctx context.Context, ready func(), add func(types.UID)) error {
	monitors := map[schema.GroupVersionResource]*monitor{}
	defer func() {
		for _, m := range monitors {
			m.stop()
		}
		for _, m := range monitors {
			<-m.done
		}
	}()
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	retry := time.Second
	for {
		complete := c.follow(ctx, monitors, add, tell)
		if ready != nil {
			waitFor(ctx, monitors)
			ready()
			ready = nil
		}
		next := rediscover
		if !complete {
			next, retry = retry, min(2*retry, time.Minute)
		} else {
			retry = time.Second
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-changed:
			// Discovery shows a new resource a little after its definition.
			timer.Reset(200 * time.Millisecond)
			select {
			case <-ctx.Done():
				timer.Stop()
				return nil
			case <-timer.C:
			}
		}
	}
}

func waitFor(ctx context.Context, monitors map[schema.GroupVersionResource]*monitor) {
	ctx, cancel := context.WithTimeout(ctx, syncWait)
	defer cancel()
	for _, m := range monitors {
		select {
		case <-m.synced:
		case <-ctx.Done():
			return
		}
	}
}

// follow starts and stops monitors as discovery says; it says whether
// discovery told everything.
func (c *collector) follow(ctx context.Context, monitors map[schema.GroupVersionResource]*monitor, add func(types.UID), tell func()) bool {
	lists, err := discovery.ServerPreferredResources(c.discovery)
	want := map[schema.GroupVersionResource]bool{}
	for _, list := range lists {
		gv, perr := schema.ParseGroupVersion(list.GroupVersion)
		if perr != nil {
			continue
		}
		for _, res := range list.APIResources {
			gvr := gv.WithResource(res.Name)
			if slices.Contains(res.Verbs, "delete") && slices.Contains(res.Verbs, "list") && slices.Contains(res.Verbs, "watch") && !slices.Contains(ignored, gvr.GroupResource()) {
				want[gvr] = true
				c.kinds.add(gvr, res.Kind, res.Namespaced)
			}
		}
	}
	for gvr := range want {
		if monitors[gvr] == nil {
			f := &feed{c.graph, gvr, add, nil}
			if slices.Contains(telling, gvr.GroupResource()) {
				f.tell = tell
			}
			monitors[gvr] = c.monitor(ctx, gvr, f)
		}
	}
	if err != nil {
		return false // what is missing may only be silent
	}
	for gvr, m := range monitors {
		if !want[gvr] {
			m.stop()
			<-m.done
			delete(monitors, gvr)
			for _, uid := range c.graph.of(gvr) {
				for _, again := range c.graph.remove(uid) {
					add(again)
				}
			}
		}
	}
	return true
}

func (c *collector) monitor(ctx context.Context, gvr schema.GroupVersionResource, f *feed) *monitor {
	ctx, cancel := context.WithCancel(ctx)
	synced, done := make(chan struct{}), make(chan struct{})
	m := &monitor{stop: cancel, synced: synced, done: done}
	if c.shared[gvr] {
		go func() {
			defer close(done)
			c.listen(ctx, gvr, f, synced)
		}()
		return m
	}
	client := c.metadata.Resource(gvr)
	once := sync.OnceFunc(func() { close(synced) })
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, o)
		},
	}, c.metadata)
	go func() {
		defer close(done)
		r := cache.NewReflectorWithOptions(lw, &metav1.PartialObjectMetadata{}, replaced{f, once}, cache.ReflectorOptions{Name: Name})
		r.RunWithContext(ctx)
	}()
	return m
}

// listen follows an informer that runs anyway.
func (c *collector) listen(ctx context.Context, gvr schema.GroupVersionResource, f *feed, synced chan struct{}) {
	generic, err := c.informers.ForResource(gvr)
	if err != nil {
		return // New has asked for it without error
	}
	inf := generic.Informer()
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { _ = f.Add(o) },
		UpdateFunc: func(_, o any) { _ = f.Update(o) },
		DeleteFunc: func(o any) { _ = f.Delete(o) },
	})
	if err != nil {
		return // stopped already
	}
	defer func() { _ = inf.RemoveEventHandler(reg) }()
	if cache.WaitFor(ctx, "", reg.HasSyncedChecker()) {
		close(synced)
	}
	<-ctx.Done()
}

// A feed puts what is seen of one resource into the graph.
type feed struct {
	graph *graph
	res   schema.GroupVersionResource
	add   func(types.UID)
	tell  func() // nil, or to call when resources may have changed
}

func (f *feed) Add(o any) error {
	m, ok := o.(metav1.Object)
	if !ok {
		return fmt.Errorf("garbage collector: %T is no object", o)
	}
	for _, uid := range f.graph.upsert(f.res, m) {
		f.add(uid)
	}
	if f.tell != nil {
		f.tell()
	}
	return nil
}

func (f *feed) Update(o any) error { return f.Add(o) }

func (f *feed) Delete(o any) error {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	m, ok := o.(metav1.Object)
	if !ok {
		return fmt.Errorf("garbage collector: %T is no object", o)
	}
	for _, uid := range f.graph.remove(m.GetUID()) {
		f.add(uid)
	}
	if f.tell != nil {
		f.tell()
	}
	return nil
}

// replaced is a feed that tells of the first complete list.
type replaced struct {
	*feed
	synced func()
}

func (r replaced) Replace(list []any, _ string) error {
	left := map[types.UID]bool{}
	for _, uid := range r.graph.of(r.res) {
		left[uid] = true
	}
	for _, o := range list {
		if err := r.Add(o); err != nil {
			return err
		}
		delete(left, o.(metav1.Object).GetUID())
	}
	for uid := range left {
		for _, again := range r.graph.remove(uid) {
			r.add(again)
		}
	}
	r.synced()
	return nil
}

func (r replaced) Resync() error { return nil }
