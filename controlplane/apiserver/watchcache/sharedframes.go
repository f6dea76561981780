package watchcache

import (
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

// sharedFrames are frames that watchers are being sent: made for the first, shared with
// all that come before the last has taken it. A hundred clients that read nothing
// hold one frame of a large object then, not a hundred.
type sharedFrames struct {
	mu  sync.Mutex
	out map[frameKey]*sharedFrame
}

type frameKey struct {
	record *Record
	typ    watch.EventType
	format Format
}

type sharedFrame struct {
	make  sync.Once
	frame []byte
	err   error
	users int
}

// AcquireFrame is Frame for large records, whose frames are not kept when they belong to
// no event or an old one. release is to be called once the frame has been sent, and also after an
// error.
func (r *Resource) AcquireFrame(d Delivery, f Format) (frame []byte, release func(), err error) {
	if d.shared() {
		frame, err = d.Frame(f, r)
		return frame, func() {}, err
	}
	key := frameKey{d.Record, d.Type, f}
	s := &r.sharedFrames
	s.mu.Lock()
	l := s.out[key]
	if l == nil {
		if s.out == nil {
			s.out = map[frameKey]*sharedFrame{}
		}
		l = &sharedFrame{}
		s.out[key] = l
	}
	l.users++
	s.mu.Unlock()
	l.make.Do(func() { l.frame, l.err = d.Frame(f, r) })
	return l.frame, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(s.out, key)
		}
	}, l.err
}
