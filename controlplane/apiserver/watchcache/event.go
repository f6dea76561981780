package watchcache

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/watch"
)

// An event is one change of one object, in the log of its resource.
type event struct {
	revision  int64
	now, prev *Record // now is nil on delete, prev on creation
	gone      *Record // on delete: prev, at the revision of the delete
	frames    [2]atomic.Pointer[frame]
}

// Format is a wire format of records and watch frames.
type Format int

const (
	JSON Format = iota
	Protobuf
)

// A frame is an event encoded for the wire, once for all watchers.
type frame struct {
	kind  watch.EventType
	bytes []byte
}

// A Delivery is one watch event for one watcher.
type Delivery struct {
	Type   watch.EventType // ADDED, MODIFIED, DELETED, BOOKMARK
	Record *Record         // nil on BOOKMARK
	// Revision is the delivery's resourceVersion.
	Revision int64
	// InitialEnd marks the bookmark that ends the initial state.
	InitialEnd bool

	event *event
}
