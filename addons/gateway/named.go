package gateway

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/references"
	"knarr/internal/run"
)

// maxNamed bounds the Secrets and ConfigMaps that are watched: each is a request that
// stays open. maxNamedEach is what one namespace may have of them.
const maxNamed, maxNamedEach = 5000, maxNamed / 4

// namedTime is how long a compilation waits for those that it has not seen yet. One that
// may not be read must not keep the others waiting for longer.
const namedTime = 3 * time.Second

// named are the Secrets and ConfigMaps that something names, each watched by its name: a
// node may read no other.
type named struct {
	ctx     context.Context
	client  kubernetes.Interface
	changed func(references.Object)
	group   run.Group

	mu   sync.Mutex
	have map[references.Object]*namedObject
}

// A namedObject is one that is watched.
type namedObject struct {
	of     *named
	key    references.Object
	cancel context.CancelFunc
	object runtime.Object
	once   sync.Once
	synced chan struct{}
	waited bool
}

func newNamed(ctx context.Context, client kubernetes.Interface, changed func(references.Object)) *named {
	return &named{ctx: ctx, client: client, changed: changed, have: map[references.Object]*namedObject{}}
}

// stop waits for the watches, whose context has ended.
func (n *named) stop() { n.group.Wait() }

// get is an object, or nil.
func (n *named) get(key references.Object) runtime.Object {
	n.mu.Lock()
	defer n.mu.Unlock()
	if o := n.have[key]; o != nil {
		return o.object
	}
	return nil
}

// want watches these and no others, and waits until what it has not seen yet is known.
func (n *named) want(ctx context.Context, list []references.Object) {
	keys := make(map[references.Object]bool, len(list))
	for _, key := range list {
		keys[key] = true
	}
	n.mu.Lock()
	for key, o := range n.have {
		if !keys[key] {
			o.cancel()
			delete(n.have, key)
		}
	}
	var wait []*namedObject
	for _, key := range list {
		o := n.have[key]
		if o == nil {
			o = n.watch(key)
			n.have[key] = o
		}
		if !o.waited {
			o.waited = true
			wait = append(wait, o)
		}
	}
	n.mu.Unlock()
	if len(wait) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, namedTime)
	defer cancel()
	for _, o := range wait {
		select {
		case <-o.synced:
		case <-ctx.Done():
			return
		}
	}
}

func (n *named) watch(key references.Object) *namedObject {
	ctx, cancel := context.WithCancel(n.ctx)
	o := &namedObject{of: n, key: key, cancel: cancel, synced: make(chan struct{})}
	var expected runtime.Object = &corev1.Secret{}
	if key.Resource == "configmaps" {
		expected = &corev1.ConfigMap{}
	}
	lw := cache.NewFilteredListWatchFromClient(n.client.CoreV1().RESTClient(), key.Resource, key.Namespace, func(opts *metav1.ListOptions) {
		opts.FieldSelector = fields.OneTermEqualSelector("metadata.name", key.Name).String()
	})
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, n.client), expected, o, cache.ReflectorOptions{Name: "gateway"})
	n.group.Go("gateway: watch "+key.Resource, func() { r.RunWithContext(ctx) })
	return o
}

// set notes the object as it is now.
func (o *namedObject) set(now any) error {
	object, _ := now.(runtime.Object)
	o.of.mu.Lock()
	first := o.object == nil && object == nil
	o.object = object
	o.of.mu.Unlock()
	fresh := false
	o.once.Do(func() { close(o.synced); fresh = true })
	if !first || !fresh {
		o.of.changed(o.key)
	}
	return nil
}

// Add, Update, Delete, Replace and Resync are what a reflector asks of a store.
func (o *namedObject) Add(now any) error    { return o.set(now) }
func (o *namedObject) Update(now any) error { return o.set(now) }
func (o *namedObject) Delete(any) error     { return o.set(nil) }
func (o *namedObject) Resync() error        { return nil }

// Replace takes a list over, which has one object or none.
func (o *namedObject) Replace(all []any, _ string) error {
	if len(all) == 0 {
		return o.set(nil)
	}
	return o.set(all[0])
}
