package memnet

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"knarr/internal/run"
)

// A Loopback hands requests of this process to a handler without a connection:
// no bytes of HTTP are written or parsed, and a request that stays, such as a watch,
// costs one goroutine and what has not been read of its answer, where a connection
// costs four and four buffers.
type Loopback struct {
	opened   chan struct{} // closed by Open, after endpoint is set
	endpoint Endpoint

	mu    sync.Mutex
	done  chan struct{} // closed by Close
	n     int           // requests under way
	empty chan struct{} // closed when none is, once it is closed
}

// An Endpoint is what answers at a Loopback.
type Endpoint struct {
	Handler http.Handler
	// Context is that of all requests of somebody whom As was given.
	Context func(identity any) context.Context
	// WriteTimeout is how long an answer may wait for its reader, from its
	// request on; the handler may set another deadline. 0: as long as it likes.
	WriteTimeout time.Duration
}

// NewLoopback returns a Loopback at which requests wait until it is opened.
func NewLoopback() *Loopback {
	return &Loopback{opened: make(chan struct{}), done: make(chan struct{}), empty: make(chan struct{})}
}

// Open lets requests in. It may be called once.
func (d *Loopback) Open(r Endpoint) {
	d.endpoint = r
	close(d.opened)
}

// Close lets no request in any longer: it is answered net.ErrClosed, as are those that
// wait. What it returns is closed once none is under way.
func (d *Loopback) Close() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.done:
	default:
		close(d.done)
		if d.n == 0 {
			close(d.empty)
		}
	}
	return d.empty
}

// As sends requests as somebody, for a rest.Config's Transport. They are refused if
// they ask for another protocol, which wants a connection.
func (d *Loopback) As(identity any) http.RoundTripper {
	return client{d, sync.OnceValue(func() context.Context { return d.endpoint.Context(identity) })}
}

type client struct {
	to   *Loopback
	base func() context.Context // once it is open
}

// RoundTrip has the request answered, and returns once its answer is flushed, has a
// certain size, or has ended.
func (v client) RoundTrip(req *http.Request) (*http.Response, error) {
	body := req.Body
	if body == nil {
		body = http.NoBody
	}
	if err := v.to.enter(req); err != nil {
		_ = body.Close()
		return nil, err
	}
	endpoint := &v.to.endpoint
	ctx, cancel := context.WithCancel(v.base())
	a := newAnswer(req.Method)
	if endpoint.WriteTimeout > 0 {
		a.deadline = time.Now().Add(endpoint.WriteTimeout)
	}
	gone := context.AfterFunc(req.Context(), func() {
		a.fail(req.Context().Err())
		cancel()
	})
	a.letGo = func() {
		gone()
		cancel()
	}
	asked := arrived(ctx, req, body)
	run.Go("request within the process", func() {
		defer v.to.leave()
		defer body.Close()
		defer a.letGo()
		a.serve(endpoint.Handler, asked)
	})
	return a.response(req)
}

// enter waits until it is open, and counts the request.
func (d *Loopback) enter(req *http.Request) error {
	if req.Header.Get("Upgrade") != "" {
		return fmt.Errorf("%s %s: upgrade to %q: requests within the process have no connection", req.Method, req.URL.Path, req.Header.Get("Upgrade"))
	}
	ctx := req.Context()
	select {
	case <-d.opened:
	case <-d.done:
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.done:
		return net.ErrClosed
	default:
	}
	d.n++
	return nil
}

func (d *Loopback) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n--; d.n > 0 {
		return
	}
	select {
	case <-d.done:
		close(d.empty)
	default:
	}
}

// arrived is the request as a server would have read it.
func arrived(ctx context.Context, req *http.Request, body body) *http.Request {
	target := &url.URL{Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery, ForceQuery: req.URL.ForceQuery}
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	length := req.ContentLength
	if length == 0 && body != http.NoBody {
		length = -1
	}
	method := req.Method
	if method == "" {
		method = http.MethodGet
	}
	header := req.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	asked := &http.Request{
		Method: method, URL: target, RequestURI: target.RequestURI(), Host: host, RemoteAddr: addr{}.String(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: body, ContentLength: length,
	}
	return asked.WithContext(ctx)
}
