package cluster

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// bodyTime is how long the body of a request may take to come, which is a few
	// hundred bytes.
	bodyTime = 3 * time.Second
	// maxPendingBodies bounds the requests whose bodies are awaited, and
	// maxPendingBodiesPerAddress those of one address. No request is refused for them:
	// the oldest is dropped, since an honest client has long sent its body.
	maxPendingBodies           = 64
	maxPendingBodiesPerAddress = 4
)

// pendingBodies are the requests whose bodies are awaited, oldest first.
type pendingBodies struct {
	mu  sync.Mutex
	all []*pendingBody
}

type pendingBody struct {
	from netip.Addr
	stop func()
}

// enter adds one, and stops the oldest where there are too many.
func (r *pendingBodies) enter(from netip.Addr, stop func()) (leave func()) {
	one := &pendingBody{from, stop}
	r.mu.Lock()
	defer r.mu.Unlock()
	same, first := 0, -1
	for i, o := range r.all {
		if o.from == from {
			if same++; first < 0 {
				first = i
			}
		}
	}
	switch {
	case same >= maxPendingBodiesPerAddress:
		r.drop(first)
	case len(r.all) >= maxPendingBodies:
		r.drop(0)
	}
	r.all = append(r.all, one)
	return func() { // from then on it is not stopped
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = slices.DeleteFunc(r.all, func(o *pendingBody) bool { return o == one })
	}
}

// drop is to be called with the lock held.
func (r *pendingBodies) drop(i int) {
	r.all[i].stop()
	r.all = slices.Delete(r.all, i, i+1)
}

// body reads the body of a request that is not authenticated yet.
func (r *pendingBodies) body(w http.ResponseWriter, req *http.Request, from netip.Addr) ([]byte, error) {
	c := http.NewResponseController(w)
	if err := c.SetReadDeadline(time.Now().Add(bodyTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	leave := r.enter(from, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer leave()
	return io.ReadAll(http.MaxBytesReader(w, req.Body, maxJoin))
}
