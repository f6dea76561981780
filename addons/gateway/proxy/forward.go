package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"knarr/addons/gateway/backend"
	"knarr/addons/gateway/route"
)

// moreConnections is how many further endpoints are tried when no connection is made.
const moreConnections = 2

// forward asks an endpoint of the share's backend, and others if it may, and passes the
// answer on.
func (x *exchange) forward() {
	u := x.share.upstream
	x.record.Backend = u.Name
	rule := x.target.Action.rule
	upgrade := x.prepareHeaders()
	if !x.hold(rule) {
		return
	}
	wish := x.wish(u)
	retries, connections := rule.Retry.Attempts, max(moreConnections, rule.Retry.Attempts)
	for {
		e := u.Set.Pick(wish)
		if e == nil {
			x.unavailable()
			return
		}
		x.record.Attempts++
		x.record.Endpoint = e.Address
		again, notMade := x.attempt(u, e, upgrade, retries > 0, connections > 0)
		e.Done()
		if !again {
			return
		}
		wish.Not = e
		if notMade {
			connections--
			continue
		}
		retries--
		if !x.backOff(rule.Retry.Backoff) {
			x.failed(context.Cause(x.r.Context()))
			return
		}
	}
}

// hold reads what is to be known of the body before an endpoint is asked; otherwise the
// request was answered.
func (x *exchange) hold(rule *route.Rule) bool {
	most := int64(smallBody)
	switch {
	case rule.Buffer:
		most = maxBufferedBody
	case rule.Retry.Attempts > 0 && !x.grpc:
		most = maxRepeatedBody
	case x.r.ContentLength < 0: // it may be a stream, which waits for an answer
		return true
	}
	err := x.body.hold(most)
	switch {
	case err == errNoRoom && !rule.Buffer: // then it is not repeated
	case err != nil:
		x.failed(err)
		return false
	case rule.Buffer && !x.body.whole:
		x.answer(http.StatusRequestEntityTooLarge)
		return false
	}
	return true
}

// unavailable answers for a backend without endpoints.
func (x *exchange) unavailable() {
	if f := x.errorPages(); f != nil && f.Unavailable {
		if page := x.asErrorPage(f, http.StatusServiceUnavailable, ""); page != nil {
			defer page.Body.Close()
			x.send(page)
			return
		}
	}
	x.answer(http.StatusServiceUnavailable)
}

const (
	maxRepeatedBody = 64 << 10
	maxBufferedBody = 16 << 20
)

// dropHopByHop takes what belongs to the client's connection off the request, before
// anything is added: what the client's Connection names must not be what the gateway says.
func (x *exchange) dropHopByHop() {
	h := x.r.Header
	for _, te := range h["Te"] {
		x.trailers = x.trailers || strings.Contains(strings.ToLower(te), "trailers")
	}
	x.protocol = dropHopByHop(h)
}

// prepareHeaders makes the request's headers those of the request to the backend.
func (x *exchange) prepareHeaders() (upgrade string) {
	h := x.r.Header
	for _, name := range hopByHop { // that filters set
		delete(h, name)
	}
	if x.trailers {
		h["Te"] = []string{"trailers"}
	}
	upgrade = x.protocol
	delete(h, "Expect") // the server has promised the body, when it is read
	delete(h, "Http2-Settings")
	// An upgrade to HTTP/2 would carry requests past the routes.
	if upgrade != "" && x.r.ProtoMajor == 1 && !strings.HasPrefix(strings.ToLower(upgrade), "h2") && !strings.ContainsAny(upgrade, ",/ ") {
		h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{upgrade}
	} else {
		upgrade = ""
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = []string{""} // that none is sent
	}
	return upgrade
}

// attempt asks one endpoint. again says that another one is to be asked, notMade that
// there was no connection to this one.
func (x *exchange) attempt(u *Upstream, e *backend.Endpoint, upgrade string, mayRepeat, mayConnect bool) (again, notMade bool) {
	ctx := x.r.Context()
	if t := x.target.Action.rule.BackendTimeout; t > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, t, errTimeout)
		defer cancel()
		ctx = limited
	}
	if u.Spec.ProxyProtocol > 0 {
		ctx = context.WithValue(ctx, clientKeyType{}, netip.AddrPortFrom(x.client, x.peerPort()))
	}
	out := x.outgoing(ctx)
	out.Body, out.ContentLength = x.body.open()
	answer, err := e.Transport.(*transport).RoundTrip(out)
	repeatable := mayRepeat && x.body.again() && (idempotent(x.r.Method) || x.r.Header["Idempotency-Key"] != nil)
	if err != nil {
		if errors.Is(err, errBodyTooLong) || x.body.bad.Load() || x.r.Context().Err() != nil {
			x.failed(errors.Join(err, context.Cause(x.r.Context())))
			return false, false
		}
		if context.Cause(ctx) == nil {
			u.Set.Unreachable(e)
		} else {
			err = errors.Join(err, context.Cause(ctx))
		}
		notMade = isNotMade(err) && x.body.again()
		if notMade && mayConnect || repeatable {
			return true, notMade
		}
		x.failed(err)
		return false, false
	}
	if answer.StatusCode >= 500 && answer.StatusCode != http.StatusNotImplemented {
		u.Set.Bad(e)
	} else {
		e.Good()
	}
	if repeatable && slices.Contains(x.target.Action.rule.Retry.Codes, answer.StatusCode) {
		_ = answer.Body.Close()
		return true, false
	}
	x.keepSession(u, e)
	x.pass(answer, upgrade)
	return false, false
}

func (x *exchange) peerPort() uint16 {
	a, _ := netip.ParseAddrPort(x.r.RemoteAddr)
	return a.Port()
}

func idempotent(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// backOff waits before another attempt, and reports whether the client waits too.
func (x *exchange) backOff(d time.Duration) bool {
	if d <= 0 {
		return x.r.Context().Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-x.r.Context().Done():
		return false
	}
}

// failed answers for an endpoint that did not.
func (x *exchange) failed(err error) {
	switch {
	case errors.Is(err, errBodyTooLong):
		x.answer(http.StatusRequestEntityTooLarge)
	case errors.Is(err, errNoRoom):
		x.answer(http.StatusServiceUnavailable)
	case x.body.bad.Load() && x.r.Context().Err() == nil:
		x.answer(http.StatusBadRequest)
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		x.answer(http.StatusGatewayTimeout)
	case x.r.Context().Err() != nil:
		x.record.Status = statusClientClosed
		panic(http.ErrAbortHandler)
	default:
		x.answer(http.StatusBadGateway)
	}
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}

// outgoing is the request to a backend, without its body.
func (x *exchange) outgoing(ctx context.Context) *http.Request {
	if ctx == x.r.Context() {
		x.out = *x.r
	} else {
		x.out = *x.r.WithContext(ctx)
	}
	out := &x.out
	out.RequestURI, out.Host, out.Body, out.ContentLength, out.URL = x.path, x.host, http.NoBody, 0, nil
	if x.query != "" {
		out.RequestURI += "?" + x.query
	}
	return out
}

// buffers are for copying bodies.
var buffers = newBufferPool()

// pass sends an endpoint's answer to the client.
func (x *exchange) pass(answer *http.Response, upgrade string) {
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusSwitchingProtocols {
		x.record.Status = answer.StatusCode
		x.upgrade(answer, upgrade)
		return
	}
	if f := x.errorPages(); f != nil && slices.Contains(f.Codes, answer.StatusCode) {
		if page := x.asErrorPage(f, answer.StatusCode, answer.Header.Get("Content-Type")); page != nil {
			defer page.Body.Close()
			answer = page
		}
	}
	x.send(answer)
}

// send is the answer as the client gets it.
func (x *exchange) send(answer *http.Response) {
	x.record.Status = answer.StatusCode
	dropHopByHop(answer.Header)
	h := x.w.Header()
	for name, values := range answer.Header {
		h[name] = values
	}
	if x.alternative != nil {
		h["Alt-Svc"] = x.alternative // of the backend's own ports a client knows nothing
	}
	if x.cookie != nil {
		h.Add("Set-Cookie", x.cookie.String())
	}
	if x.sessionName != "" {
		h.Set(x.sessionName, x.session)
	}
	x.responseFilters(h)
	for name := range answer.Trailer {
		h.Add("Trailer", name)
	}
	x.w.WriteHeader(answer.StatusCode)
	if x.r.Method != http.MethodHead {
		x.copyBody(answer)
	}
	for name, values := range answer.Trailer {
		h[http.TrailerPrefix+name] = values
	}
}

func (x *exchange) errorPages() *errorPages {
	if f := x.share.filters.errors; f != nil {
		return f
	}
	return x.target.Action.filters.errors
}

// copyBody passes a body on as it arrives. When it breaks off, so does the answer: the
// client sees that it is not whole.
func (x *exchange) copyBody(answer *http.Response) {
	buf := buffers.get()
	defer buffers.put(buf)
	flusher, _ := x.w.(http.Flusher)
	buffered, _ := answer.Body.(interface{ Buffered() int })
	// A body without a length may be a stream, of which each part is wanted at once.
	flush := func() {
		if answer.ContentLength < 0 && flusher != nil && (buffered == nil || buffered.Buffered() == 0) {
			flusher.Flush()
		}
	}
	flush()
	for {
		n, err := answer.Body.Read(*buf)
		if n > 0 {
			sent, writeErr := x.w.Write((*buf)[:n])
			x.record.Sent += int64(sent)
			if writeErr != nil {
				panic(http.ErrAbortHandler)
			}
			flush()
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}
