package watchcache

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// An event is one change of one object, in the log of its resource.
type event struct {
	revision    int64
	at          time.Time
	now, prev   *Record // now is nil on delete, prev on creation
	gone        *Record // on delete: prev, at the revision of the delete
	frames      [2]atomic.Pointer[[]byte]
	uncacheable atomic.Bool // nobody may keep a frame of it
}

// forgetFrames drops the event's frames.
func (e *event) forgetFrames() {
	for f := range e.frames {
		e.frames[f].Store(nil)
	}
}

// kind is what a watcher without selectors sees.
func (e *event) kind() watch.EventType {
	switch {
	case e.now == nil:
		return watch.Deleted
	case e.prev == nil:
		return watch.Added
	}
	return watch.Modified
}

func (e *event) size() int {
	n := 256
	for _, r := range []*Record{e.now, e.gone} {
		if r != nil {
			n += len(r.message)
		}
	}
	return n
}

// growth is by how much the change makes the resource longer.
func (e *event) growth() (n int) {
	if e.now != nil {
		n = len(e.now.message)
	}
	if e.prev != nil {
		n -= len(e.prev.message)
	}
	return n
}

// Format is a wire format of records and watch frames.
type Format int

const (
	JSON Format = iota
	Protobuf
)

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

// LargeSize is that of records of which only the newest events keep their frames,
// for they would take more than all else, and whose frames are sent without a
// copy, which each client that does not read would hold.
const LargeSize = 32 << 10

// shared says that the frame is kept with an event.
func (d Delivery) shared() bool {
	return d.event != nil && d.event.kind() == d.Type && !d.event.uncacheable.Load()
}

// Frame is the whole watch frame of an ADDED, MODIFIED or DELETED: a line of
// JSON, or a protobuf WatchEvent behind its length in four bytes. It is made
// once for all watchers of the resource; nobody may change it.
func (d Delivery) Frame(f Format, r *Resource) ([]byte, error) {
	shared := d.shared()
	if shared {
		if b := d.event.frames[f].Load(); b != nil {
			return *b, nil
		}
	}
	var b []byte
	var err error
	if f == JSON {
		b, err = r.jsonFrame(d)
	} else {
		b, err = r.protoFrame(d)
	}
	if err != nil {
		return nil, err
	}
	if shared {
		d.event.frames[f].Store(&b)
		if d.event.uncacheable.Load() { // meanwhile
			d.event.frames[f].Store(nil)
		}
	}
	return b, nil
}

func (r *Resource) jsonFrame(d Delivery) ([]byte, error) {
	// JSON is about twice the message.
	b := make([]byte, 0, 2*len(d.Record.message)+len(r.jsonHead)+40)
	b = append(b, `{"type":"`...)
	b = append(b, d.Type...)
	b = append(b, `","object":`...)
	b, err := d.Record.AppendDocument(b, r.jsonHead)
	if err != nil {
		return nil, err
	}
	return append(b, '}', '\n'), nil
}

// protoFrame writes metav1.WatchEvent{Type: 1, Object: 2 {Raw: 1}} whose raw
// bytes are the object in its envelope.
func (r *Resource) protoFrame(d Delivery) ([]byte, error) {
	message := d.Record.message
	unknown := len(r.codec.head) + 1 + uvarintLen(len(message)) + len(message) + len(envelopeTail)
	raw := 1 + uvarintLen(unknown) + unknown
	whole := 2 + len(d.Type) + 1 + uvarintLen(raw) + raw
	b := make([]byte, 0, 4+whole)
	b = binary.BigEndian.AppendUint32(b, uint32(whole))
	b = appendBytes(b, 0x0a, []byte(d.Type))
	b = append(b, 0x12)
	b = binary.AppendUvarint(b, uint64(raw))
	b = append(b, 0x0a)
	b = binary.AppendUvarint(b, uint64(unknown))
	b = append(b, r.codec.head...)
	b = appendBytes(b, 0x12, message)
	return append(b, envelopeTail...), nil
}

func uvarintLen(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}
