package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/run"
)

// errNotServed says that the API server knows no such resource, yet.
var errNotServed = errors.New("is not served")

// listWait is how long the first list of a resource may take.
const listWait = 30 * time.Second

// counters watch the metadata of the resources that quotas count, of no other.
type counters struct {
	discovery discovery.DiscoveryInterface
	metadata  metadata.Interface

	mu      sync.Mutex
	ctx     context.Context // of the term
	gone    func(gr schema.GroupResource, namespace string)
	running map[schema.GroupResource]*counter
	wg      run.Group
}

type counter struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
}

func newCounters(d discovery.DiscoveryInterface, m metadata.Interface) *counters {
	return &counters{discovery: d, metadata: m, running: map[schema.GroupResource]*counter{}}
}

// start lets counters run until ctx ends; gone hears of each deletion.
func (c *counters) start(ctx context.Context, gone func(schema.GroupResource, string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ctx, c.gone = ctx, gone
}

// stop ends all counters and waits for them.
func (c *counters) stop() {
	c.keep(nil)
	c.wg.Wait()
}

// keep ends the counters of all other resources.
func (c *counters) keep(wanted map[schema.GroupResource]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for gr, one := range c.running {
		if !wanted[gr] {
			one.stop()
			delete(c.running, gr)
		}
	}
}

// count is how many objects of a resource are in a namespace. The first
// question about a resource waits for its list.
func (c *counters) count(ctx context.Context, gr schema.GroupResource, namespace string) (int, error) {
	one, err := c.counter(gr)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	if !cache.WaitFor(ctx, "", one.informer.HasSyncedChecker()) {
		return 0, fmt.Errorf("list %s: %w", gr, ctx.Err())
	}
	keys, err := one.informer.GetIndexer().IndexKeys(cache.NamespaceIndex, namespace)
	return len(keys), err
}

func (c *counters) counter(gr schema.GroupResource) (*counter, error) {
	c.mu.Lock()
	one := c.running[gr]
	c.mu.Unlock()
	if one != nil {
		return one, nil
	}
	gvr, err := c.find(gr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.running[gr]; one != nil {
		return one, nil
	}
	if c.ctx.Err() != nil {
		return nil, c.ctx.Err()
	}
	client := c.metadata.Resource(gvr)
	inf := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, o)
		},
	}, c.metadata), &metav1.PartialObjectMetadata{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := inf.SetTransform(nameOnly); err != nil {
		return nil, fmt.Errorf("watch %s: %w", gr, err)
	}
	if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(o any) { c.gone(gr, namespaceOf(o)) },
	}); err != nil {
		return nil, fmt.Errorf("watch %s: %w", gr, err)
	}
	ctx, stop := context.WithCancel(c.ctx)
	c.wg.Loop(ctx, "resourcequota: informer", inf.RunWithContext)
	one = &counter{inf, stop}
	c.running[gr] = one
	return one, nil
}

// nameOnly keeps what counting needs of an object.
func nameOnly(o any) (any, error) {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		return &metav1.PartialObjectMetadata{TypeMeta: m.TypeMeta, ObjectMeta: metav1.ObjectMeta{
			Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion}}, nil
	}
	return o, nil
}

// find asks discovery for a version in which the resource can be counted.
func (c *counters) find(gr schema.GroupResource) (schema.GroupVersionResource, error) {
	versions := []string{"v1"}
	if gr.Group != "" {
		groups, err := c.discovery.ServerGroups()
		if err != nil {
			return schema.GroupVersionResource{}, fmt.Errorf("look for %s: %w", gr, err)
		}
		versions = nil
		for _, g := range groups.Groups {
			if g.Name != gr.Group {
				continue
			}
			versions = append(versions, g.PreferredVersion.GroupVersion)
			for _, v := range g.Versions {
				versions = append(versions, v.GroupVersion)
			}
		}
	}
	for _, v := range versions {
		list, err := c.discovery.ServerResourcesForGroupVersion(v)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return schema.GroupVersionResource{}, fmt.Errorf("look for %s: %w", gr, err)
		}
		for _, res := range list.APIResources {
			if strings.EqualFold(res.Name, gr.Resource) && res.Namespaced && slices.Contains(res.Verbs, "list") && slices.Contains(res.Verbs, "watch") {
				gv, err := schema.ParseGroupVersion(v)
				return gv.WithResource(res.Name), err
			}
		}
	}
	return schema.GroupVersionResource{}, fmt.Errorf("%s: %w", gr, errNotServed)
}
