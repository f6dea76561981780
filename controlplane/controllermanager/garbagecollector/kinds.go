package garbagecollector

import (
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kinds finds the resource of an owner reference. A reference may name another
// version than the one that is watched; the group and kind decide.
type kinds struct {
	mu sync.Mutex
	by map[schema.GroupKind]served
	of map[schema.GroupVersionResource]string
}

type served struct {
	schema.GroupVersionResource
	namespaced bool
}

// errNotServed says that discovery listed all resources, and the owner's is
// not among them.
var errNotServed = errors.New("no resource is known")

// keep forgets the resources that are neither served nor watched any more.
func (k *kinds) keep(served map[schema.GroupVersionResource]bool, watched monitors) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for kind, s := range k.by {
		if !served[s.GroupVersionResource] {
			delete(k.by, kind)
		}
	}
	for res := range k.of {
		if !served[res] && watched[res] == nil {
			delete(k.of, res)
		}
	}
}

func (k *kinds) add(res schema.GroupVersionResource, kind string, namespaced bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by == nil {
		k.by, k.of = map[schema.GroupKind]served{}, map[schema.GroupVersionResource]string{}
	}
	k.by[schema.GroupKind{Group: res.Group, Kind: kind}] = served{res, namespaced}
	k.of[res] = kind
}

func (k *kinds) resource(ref metav1.OwnerReference) (schema.GroupVersionResource, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	s, ok := k.by[schema.GroupKind{Group: gv.Group, Kind: ref.Kind}]
	if !ok {
		return schema.GroupVersionResource{}, false, fmt.Errorf("%w for owner kind %s of %s", errNotServed, ref.Kind, ref.APIVersion)
	}
	return s.GroupVersionResource, s.namespaced, nil
}

func (k *kinds) kind(res schema.GroupVersionResource) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.of[res]
}
