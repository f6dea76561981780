package garbagecollector

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/informer"
	"knarr/internal/run"
)

const (
	// syncWait is how long an unanswering resource may hold up the rest.
	syncWait = 30 * time.Second
	// rediscover is how often the resources are listed though no event says
	// that they changed.
	rediscover = 5 * time.Minute
	// settleWait is when a decision that needs all dependents in sight is made anew.
	settleWait = 200 * time.Millisecond
)

// ignored are resources that own nothing, are owned by nothing, and are many.
var ignored = []schema.GroupResource{{Resource: "events"}, {Group: "events.k8s.io", Resource: "events"}}

// apiDefinitions are the resources whose objects bring resources.
var apiDefinitions = []schema.GroupResource{
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
	{Group: "apiregistration.k8s.io", Resource: "apiservices"},
}

// A monitor watches one resource.
type monitor struct {
	feed   *feed
	began  time.Time
	stop   func()
	synced <-chan struct{}
	done   <-chan struct{}
	// counted says that it counts as one that failed.
	counted bool
}

// pending says that the monitor has yet to show all objects, and may: one that
// has not in syncWait holds nobody up any longer.
func (m *monitor) pending() bool {
	select {
	case <-m.synced:
		return false
	default:
		return time.Since(m.began) < syncWait
	}
}

// failed says that the monitor has not shown all objects in time.
func (m *monitor) failed() bool {
	select {
	case <-m.synced:
		return false
	default:
		return !m.pending()
	}
}

// monitors are what is watched.
type monitors map[schema.GroupVersionResource]*monitor

// successor is the monitor that watches m's resource in the version that is
// preferred now, nil if there is none.
func (all monitors) successor(of schema.GroupVersionResource, want map[schema.GroupVersionResource]bool) *monitor {
	for gvr, m := range all {
		if want[gvr] && gvr.GroupResource() == of.GroupResource() {
			return m
		}
	}
	return nil
}

// decideSettled decides while all resources are in sight, so that an object without
// dependents in the graph has none; ok says that they are. No monitor comes or goes
// between the two.
func (c *collector) decideSettled(uid types.UID) (d decision, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.monitors {
		if m.pending() {
			return decision{}, false
		}
	}
	return c.graph.decide(uid), true
}

// watch keeps the graph up to date with all resources there are.
func (c *collector) watch(ctx context.Context, ready func(), add func(types.UID)) error {
	defer func() {
		for _, m := range c.monitors {
			m.stop()
		}
		for _, m := range c.monitors {
			<-m.done
		}
	}()
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	retry := time.Second
	for {
		complete := c.follow(ctx, add, notify)
		if ready != nil {
			waitFor(ctx, c.monitors)
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

func waitFor(ctx context.Context, monitors monitors) {
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

// follow starts and stops monitors as discovery says; it reports whether that is
// done. Where another version of a resource is preferred now, its monitor takes
// over once it has shown all objects, so that none is out of sight between. What
// is out of sight for good is not taken for deleted: the server is asked.
func (c *collector) follow(ctx context.Context, add func(types.UID), notify func()) bool {
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(want) == 0 {
		syncErrors.Inc()
	}
	for gvr := range want {
		if m := c.monitors[gvr]; m != nil {
			m.feed.superseded.Store(false)
			if !m.counted && m.failed() {
				m.counted = true
				syncErrors.Inc()
			}
			continue
		}
		f := &feed{graph: c.graph, res: gvr, add: add, listed: func() { c.resume(add) }}
		if slices.Contains(apiDefinitions, gvr.GroupResource()) {
			f.notify = notify
		}
		c.monitors[gvr] = c.monitor(ctx, gvr, f)
	}
	if err != nil {
		return false // what is missing may only be silent
	}
	complete := true
	for gvr, m := range c.monitors {
		if want[gvr] {
			continue
		}
		if next := c.monitors.successor(gvr, want); next != nil {
			m.feed.superseded.Store(true)
			if next.pending() {
				complete = false
				continue
			}
		}
		m.stop()
		<-m.done
		delete(c.monitors, gvr)
		for _, again := range c.graph.removeAll(gvr) {
			add(again)
		}
	}
	c.kinds.keep(want, c.monitors)
	return complete
}

func (c *collector) monitor(ctx context.Context, gvr schema.GroupVersionResource, f *feed) *monitor {
	ctx, cancel := context.WithCancel(ctx)
	synced, done := make(chan struct{}), make(chan struct{})
	m := &monitor{feed: f, began: time.Now(), stop: cancel, synced: synced, done: done}
	if c.shared[gvr] {
		run.Go("garbage collector: watch", func() {
			defer close(done)
			c.listen(ctx, gvr, f, synced)
		})
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
	run.Go("garbage collector: watch", func() {
		defer close(done)
		r := cache.NewReflectorWithOptions(lw, &metav1.PartialObjectMetadata{}, replaced{f, once}, cache.ReflectorOptions{
			Name: Name, TypeDescription: gvr.String(), // all have one type: which cannot be listed is said
		})
		r.RunWithContext(ctx)
	})
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
		AddFunc: func(o any) { _ = f.Add(o) },
		UpdateFunc: func(old, o any) {
			if !informer.Same(old, o) {
				_ = f.Delete(cache.DeletedFinalStateUnknown{Obj: old})
			}
			_ = f.Update(o)
		},
		DeleteFunc: func(o any) { _ = f.Delete(o) },
	})
	if err != nil {
		return // stopped already
	}
	defer func() { _ = inf.RemoveEventHandler(reg) }()
	if cache.WaitFor(ctx, "", reg.HasSyncedChecker()) {
		close(synced)
		f.listed()
	}
	<-ctx.Done()
}

// A feed puts what is seen of one resource into the graph.
type feed struct {
	graph  *graph
	res    schema.GroupVersionResource
	add    func(types.UID)
	notify func() // nil, or to call when resources may have changed
	// superseded says that the resource is watched in another version now.
	superseded atomic.Bool
	// listed is called after each complete list.
	listed func()
}

func (f *feed) Add(o any) error {
	m, ok := o.(metav1.Object)
	if !ok {
		return fmt.Errorf("garbage collector: %T is no object", o)
	}
	for _, uid := range f.graph.upsert(f.res, m, f.superseded.Load()) {
		f.add(uid)
	}
	if f.notify != nil {
		f.notify()
	}
	return nil
}

func (f *feed) Update(o any) error { return f.Add(o) }

func (f *feed) Delete(o any) error {
	_, missed := o.(cache.DeletedFinalStateUnknown) // a list did not show it; its deletion was not seen
	m, ok := informer.Object(o).(metav1.Object)
	if !ok {
		return fmt.Errorf("garbage collector: %T is no object", o)
	}
	for _, uid := range f.graph.remove(m.GetUID(), !missed) {
		f.add(uid)
	}
	if f.notify != nil {
		f.notify()
	}
	return nil
}

// replaced is a feed that signals the first complete list.
type replaced struct {
	*feed
	synced func()
}

func (r replaced) Replace(list []any, _ string) error {
	objects := make([]metav1.Object, len(list))
	for i, o := range list {
		m, ok := o.(metav1.Object)
		if !ok {
			return fmt.Errorf("garbage collector: %T is no object", o)
		}
		objects[i] = m
	}
	for _, uid := range r.graph.replace(r.res, objects, r.superseded.Load()) {
		r.add(uid)
	}
	if r.notify != nil {
		r.notify()
	}
	r.synced()
	r.listed()
	return nil
}

func (r replaced) Resync() error { return nil }
