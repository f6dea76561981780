package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"knarr/addons/gateway/route"
)

// An exchange is one request while it is served.
type exchange struct {
	port *Port
	site *Site
	w    http.ResponseWriter
	r    *http.Request
	// request is what was matched. Its path is what the backend is asked, unless a
	// filter rewrites it.
	request route.Request
	target  *route.Target[*action]
	share   *share
	// peer is who is connected, client whom it speaks for.
	peer, client netip.Addr
	// host and path are what the backend is asked.
	host, path, query string
	// scheme, forwardedHost and forwardedPort are what the client asked.
	scheme, forwardedHost, forwardedPort string
	// protocol is what the client wants its connection upgraded to; trailers says that it
	// takes some.
	protocol string
	trailers bool
	// body is the request's, unless a filter read it.
	body *requestBody
	out  http.Request // to the backend
	grpc bool
	// alternative is what the client is told of HTTP/3.
	alternative []string
	record      Record
	// cookie is of a session, to be set.
	cookie      *http.Cookie
	sessionName string // of a header
	session     string
	// counted are the limiters that this request is counted by until it ends.
	counted [2]*limiter
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// ServeHTTP serves one request.
func (p *Port) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := exchanges.Get().(*exchange)
	*x = exchange{port: p, w: w, r: r}
	x.record.Start = time.Now()
	defer x.end()
	x.serve()
}

// end counts and logs the request, however it ended.
func (x *exchange) end() {
	cause := recover()
	if cause != nil && cause != http.ErrAbortHandler {
		logPanic(cause)
	}
	if x.body != nil {
		x.body.finish()
	}
	for _, l := range x.counted {
		l.leave(x.client)
	}
	rec := &x.record
	if cause != nil && rec.Status == 0 {
		rec.Status = statusClientClosed
	}
	rec.Duration = time.Since(rec.Start)
	if ended := x.port.proxy.cfg.Ended; ended != nil {
		rec.Client, rec.Method, rec.Scheme, rec.Host, rec.Path, rec.Query = x.client, x.r.Method, x.scheme, x.request.Host, x.request.Path, x.request.RawQuery
		rec.UserAgent, rec.Referer = x.r.Header.Get("User-Agent"), x.r.Header.Get("Referer")
		rec.Protocol = x.r.Proto
		if x.body != nil {
			rec.Received = x.body.read.Load()
		}
		ended(rec)
	}
	*x = exchange{}
	exchanges.Put(x)
	if cause != nil {
		panic(http.ErrAbortHandler) // the server ends the connection or the stream
	}
}

func (x *exchange) serve() {
	if status := x.identify(); status != 0 {
		x.answer(status)
		return
	}
	if x.challenge() {
		return
	}
	x.target = x.site.table.Match(&x.request)
	if x.target == nil {
		x.answer(http.StatusNotFound)
		return
	}
	a := x.target.Action
	x.record.Route, x.record.Rule, x.record.NoLog = a.route, a.rule.Name, a.rule.NoAccessLog
	if matched := x.port.proxy.cfg.Matched; matched != nil {
		x.record.Counted = matched(a.route)
	}
	if t := a.rule.Timeout; t > 0 {
		ctx, cancel := context.WithTimeoutCause(x.r.Context(), t, errTimeout)
		defer cancel()
		x.r = x.r.WithContext(ctx)
	}
	x.body = newRequestBody(x.r, a.rule.BodyLimit, &x.port.proxy.room)
	if limit := a.rule.BodyLimit; limit > 0 && x.r.ContentLength > limit {
		x.answer(http.StatusRequestEntityTooLarge)
		return
	}
	x.dropHopByHop()
	x.forwarded()
	if t := x.port.proxy.cfg.Tracer; t != nil {
		x.record.Span = t.Begin(x.r.Header)
	}
	if a.filters.any && x.filtered(&a.filters) {
		return
	}
	if a.rule.Status != 0 {
		x.answer(a.rule.Status)
		return
	}
	x.share = a.choose()
	if x.share == nil || x.share.upstream == nil {
		x.answer(http.StatusInternalServerError)
		return
	}
	if x.share.filters.any && x.filtered(&x.share.filters) {
		return
	}
	x.forward()
}

// errTimeout is why a request's context ended after the rule's time.
var errTimeout = errors.New("the route's timeout has passed")

// identify finds the client, the host, the site and the path, or says what is wrong with
// the request.
func (x *exchange) identify() (status int) {
	r := x.r
	if a, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		x.peer = a.Addr().Unmap()
	}
	x.client = x.peer
	host, ok := route.CleanHost(r.Host)
	if !ok || host == "" && r.ProtoAtLeast(1, 1) {
		return http.StatusBadRequest
	}
	x.request = route.Request{Host: host, Method: r.Method, Header: r.Header}
	sites := x.port.sites.Load()
	site, found := sites.Find(host)
	if r.TLS != nil && found {
		// A connection that was opened for one listener, or for no name, carries no requests
		// for another: their certificates and what they ask of clients differ.
		name, _ := route.CleanHost(r.TLS.ServerName)
		if of, _ := sites.Find(name); of != site {
			x.request.Path = r.URL.Path
			return http.StatusMisdirectedRequest
		}
	}
	if !found {
		return http.StatusNotFound
	}
	x.site = site
	if site.alternative != nil && r.ProtoMajor < 3 && x.port.http3.Load() {
		if served, _ := site.http3.Find(host); served {
			x.alternative = site.alternative
			x.w.Header()["Alt-Svc"] = x.alternative
		}
	}
	x.record.Listener = site.Listener.Name
	x.client = clientAddress(x.peer, r.Header, site.Listener.TrustedProxies)
	x.request.Source = x.client
	if r.Method == http.MethodConnect {
		return http.StatusMethodNotAllowed
	}
	path, query := target(r)
	if !validMethod(r.Method) || !validQuery(query) {
		return http.StatusBadRequest
	}
	if path == "*" {
		x.request.Path = path
		return http.StatusNotFound
	}
	if x.request.Path, ok = route.CleanPath(path); !ok {
		return http.StatusBadRequest
	}
	x.request.RawQuery = query
	x.path, x.query, x.host = x.request.Path, query, r.Host
	x.grpc = route.IsGRPC(r.Header)
	return 0
}

// validMethod and validQuery keep what HTTP/2 can carry out of a request line.
func validMethod(m string) bool {
	for i := 0; i < len(m); i++ {
		if b := m[i]; (b < 'A' || b > 'Z') && (b < 'a' || b > 'z') && b != '-' && b != '_' {
			return false
		}
	}
	return m != "" && len(m) <= 32
}

func validQuery(q string) bool {
	for i := 0; i < len(q); i++ {
		if b := q[i]; b <= ' ' || b == 0x7f || b == '#' {
			return false
		}
	}
	return true
}

// target is the path and the query as the client wrote them.
func target(r *http.Request) (path, query string) {
	if r.RequestURI != "" && r.RequestURI[0] == '/' {
		uri := r.RequestURI
		for i := 0; i < len(uri); i++ {
			if uri[i] == '?' {
				return uri[:i], uri[i+1:]
			}
		}
		return uri, ""
	}
	if r.URL.Path == "*" {
		return "*", ""
	}
	if path = r.URL.EscapedPath(); path == "" {
		path = "/" // an absolute form without one
	}
	return path, r.URL.RawQuery
}
