package fault

import (
	"io"
	"net/http"
	"strings"
	"sync"
)

// Watches are those of one process or several that follow each other.
type Watches struct {
	mu   sync.Mutex
	held map[string]chan struct{} // by resource, "*" is all; closed when it goes on
	cut  map[string]bool          // by path: the next watch of it finds its revision too old
	open map[*body]bool
}

// NewWatches returns watches that nothing holds back.
func NewWatches() *Watches {
	return &Watches{held: map[string]chan struct{}{}, cut: map[string]bool{}, open: map[*body]bool{}}
}

// Hold keeps back all that watches of a resource bring; "*" is every resource.
func (w *Watches) Hold(resource string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held[resource] == nil {
		w.held[resource] = make(chan struct{})
	}
}

// Release lets watches of the resource bring what was kept back.
func (w *Watches) Release(resource string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if gate := w.held[resource]; gate != nil {
		close(gate)
		delete(w.held, resource)
	}
}

// Expire ends the watches of the resource instead: what was kept back is lost,
// and their revision is too old to go on from.
func (w *Watches) Expire(resource string) {
	w.mu.Lock()
	var cut []*body
	for b := range w.open {
		if resource == "*" || resource == b.resource {
			cut = append(cut, b)
			w.cut[b.path] = true
		}
	}
	w.mu.Unlock()
	for _, b := range cut {
		b.end()
		b.ReadCloser.Close() // a read may be waiting
	}
	w.Release(resource)
}

// expired says, once for each path that was cut, that the watch's revision is
// too old. One that asks for the objects first needs no revision.
func (w *Watches) expired(req *http.Request) bool {
	q := req.URL.Query()
	if w == nil || q.Get("sendInitialEvents") == "true" || q.Get("resourceVersion") == "" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	cut := w.cut[req.URL.Path]
	delete(w.cut, req.URL.Path)
	return cut
}

func (w *Watches) hold(resource, path string, rc io.ReadCloser) io.ReadCloser {
	if w == nil {
		return rc
	}
	b := &body{ReadCloser: rc, resource: resource, path: path, watches: w, ended: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[b] = true
	return b
}

// gate is what a watch of the resource waits for; nil is nothing.
func (w *Watches) gate(resource string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if g := w.held["*"]; g != nil {
		return g
	}
	return w.held[resource]
}

// A body is what one watch brings.
type body struct {
	io.ReadCloser
	resource, path string
	watches        *Watches
	once           sync.Once
	ended          chan struct{}
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for gate := b.watches.gate(b.resource); gate != nil && !b.isEnded(); gate = b.watches.gate(b.resource) {
		select {
		case <-gate:
		case <-b.ended:
		}
	}
	if b.isEnded() {
		return 0, io.EOF
	}
	return n, err
}

func (b *body) isEnded() bool {
	select {
	case <-b.ended:
		return true
	default:
		return false
	}
}

func (b *body) end() { b.once.Do(func() { close(b.ended) }) }

func (b *body) Close() error {
	b.end()
	b.watches.mu.Lock()
	delete(b.watches.open, b)
	b.watches.mu.Unlock()
	return b.ReadCloser.Close()
}

// gone is what a server answers to a watch from a revision it no longer has.
func gone(req *http.Request) *http.Response {
	const status = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"too old resource version","reason":"Expired","code":410}`
	return answer(req, http.StatusGone, status)
}

func answer(req *http.Request, code int, json string) *http.Response {
	return &http.Response{StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(json)), Body: io.NopCloser(strings.NewReader(json))}
}
