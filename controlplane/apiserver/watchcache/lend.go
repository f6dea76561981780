package watchcache

import (
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

// loans are frames that watchers are being sent: made for the first, shared with
// all that come before the last has taken it. A hundred clients that read nothing
// hold one frame of a large object then, not a hundred.
type loans struct {
	mu  sync.Mutex
	out map[loanKey]*loan
}

type loanKey struct {
	record *Record
	typ    watch.EventType
	format Format
}

type loan struct {
	make  sync.Once
	frame []byte
	err   error
	users int
}

// Lend is Frame for large records, whose frames are not kept when they belong to
// no event or an old one. back is to be called once the frame has been sent, and also after an
// error.
func (r *Resource) Lend(d Delivery, f Format) (frame []byte, back func(), err error) {
	if d.shared() {
		frame, err = d.Frame(f, r)
		return frame, func() {}, err
	}
	key := loanKey{d.Record, d.Type, f}
	s := &r.loans
	s.mu.Lock()
	l := s.out[key]
	if l == nil {
		if s.out == nil {
			s.out = map[loanKey]*loan{}
		}
		l = &loan{}
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
