package informer

import (
	"fmt"

	"k8s.io/client-go/tools/cache"

	"knarr/internal/run"
)

// Indexable is an informer, or what it keeps its objects in.
type Indexable interface {
	AddIndexers(cache.Indexers) error
}

// Index has the objects of an informer found by what each function says of them. One that
// panics or fails says nothing of that object, which is logged and counted: client-go's
// cache would lose the objects beside it in the batch, and tell nobody of them.
func Index(inf Indexable, by cache.Indexers) error {
	guarded := make(cache.Indexers, len(by))
	for name, f := range by {
		guarded[name] = func(o any) (keys []string, _ error) {
			err := run.Catch("index by "+name, func() (err error) {
				keys, err = f(o)
				return err
			})
			if err != nil {
				return nil, nil
			}
			return keys, nil
		}
	}
	if err := inf.AddIndexers(guarded); err != nil {
		return fmt.Errorf("index objects: %w", err)
	}
	return nil
}
