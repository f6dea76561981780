package proxy

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"knarr/addons/gateway/backend"
	"knarr/addons/gateway/route"
	"knarr/internal/run"
)

const (
	maxMirrors    = 256     // copies in flight; more are not sent
	maxMirrorBody = 1 << 20 // of a request; one with a longer body is not copied
	mirrorTimeout = 30 * time.Second
)

// A mirror is a backend that gets copies of requests.
type mirror struct {
	route.Mirror
	upstream *Upstream
}

// mirror sends a copy of the request, whose answer nobody reads.
func (x *exchange) mirror(m *mirror) {
	if m.Denominator > 0 && rand.IntN(m.Denominator) >= m.Numerator {
		return
	}
	if err := x.body.hold(maxMirrorBody); err != nil || !x.body.whole {
		return
	}
	p := x.port.proxy
	if p.mirrors.Add(1) > maxMirrors {
		p.mirrors.Add(-1)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), mirrorTimeout)
	out := x.outgoing(ctx).Clone(ctx)
	dropHopByHop(out.Header)
	body := x.body
	body.retain()
	out.Body, out.ContentLength = body.open()
	run.Go("gateway mirror", func() {
		defer p.mirrors.Add(-1)
		defer body.release()
		defer cancel()
		e := m.upstream.Set.Pick(backend.Wish{})
		if e == nil {
			return
		}
		defer e.Done()
		answer, err := e.Transport.(*transport).RoundTrip(out)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxMirrorBody))
		_ = answer.Body.Close()
	})
}

// errorPages are a backend that answers in place of others' failures.
type errorPages struct {
	*route.ErrorPages
	upstream *Upstream
}

// asErrorPage asks for the page of a code, as ingress-nginx asks for those of
// custom-http-errors: the headers say what happened. It is nil if there is none.
func (x *exchange) asErrorPage(f *errorPages, status int, kind string) *http.Response {
	e := f.upstream.Set.Pick(backend.Wish{})
	if e == nil {
		return nil
	}
	defer e.Done()
	out := x.outgoing(x.r.Context()).Clone(x.r.Context())
	out.Method, out.RequestURI = http.MethodGet, "/"
	out.Header = http.Header{
		"X-Code":         {publicPort(uint16(status))},
		"X-Format":       {x.r.Header.Get("Accept")},
		"X-Original-Uri": {x.request.Path},
		"X-Request-Id":   x.r.Header["X-Request-Id"],
		"X-Service-Name": {x.record.Backend},
		"Content-Type":   {kind},
	}
	for _, h := range f.Headers {
		out.Header.Set(h.Name, h.Value)
	}
	answer, err := e.Transport.(*transport).RoundTrip(out)
	if err != nil {
		return nil
	}
	return answer
}
