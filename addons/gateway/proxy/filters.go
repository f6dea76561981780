package proxy

import (
	"net/http"
	"net/netip"

	"knarr/addons/gateway/route"
)

// filtered does the filters of a rule or a share, up to where the request is sent on. It
// reports whether the request was answered.
func (x *exchange) filtered(f *filters) bool {
	if r := f.Redirect; r != nil && r.OnlyPlain && x.scheme != "https" {
		x.redirect(r)
		return true
	}
	if f.Access != nil && !allowed(f.Access, x.client) {
		x.answer(http.StatusForbidden)
		return true
	}
	if f.CORS != nil && x.preflight(f.CORS) { // browsers send no credentials with it
		return true
	}
	if f.auth != nil && !x.authenticated(f.auth) {
		return true
	}
	if f.limiter != nil {
		if !f.limiter.enter(x.client) {
			x.answer(f.limiter.code())
			return true
		}
		if x.counted[0] == nil {
			x.counted[0] = f.limiter
		} else {
			x.counted[1] = f.limiter
		}
	}
	if f.RequestHeaders != nil {
		change(x.r.Header, f.RequestHeaders)
		for _, list := range [][]route.Header{f.RequestHeaders.Set, f.RequestHeaders.Add} {
			for _, h := range list {
				if h.Name == "Host" {
					x.host = h.Value
				}
			}
		}
		delete(x.r.Header, "Host")
	}
	if r := f.Redirect; r != nil && !r.OnlyPlain {
		x.redirect(r)
		return true
	}
	if f.Rewrite != nil {
		x.rewrite(f.Rewrite)
	}
	for i := range f.mirrors {
		x.mirror(&f.mirrors[i])
	}
	return false
}

func allowed(a *route.Access, client netip.Addr) bool {
	return !within(client, a.Deny) && (len(a.Allow) == 0 || within(client, a.Allow))
}

// change makes the changes of headers: Set, then Add, then Remove.
func change(h http.Header, by *route.Headers) {
	for i := range by.Set {
		h[by.Set[i].Name] = []string{by.Set[i].Value}
	}
	for i := range by.Add {
		h[by.Add[i].Name] = append(h[by.Add[i].Name], by.Add[i].Value)
	}
	for _, name := range by.Remove {
		delete(h, name)
	}
}

// respond does the filters that change an answer's headers: those of the share, then of
// the rule.
func (x *exchange) responseFilters(h http.Header) {
	if x.share != nil && x.share.filters.any {
		x.responseFilter(&x.share.filters, h)
	}
	if f := &x.target.Action.filters; f.any {
		x.responseFilter(f, h)
	}
}

func (x *exchange) responseFilter(f *filters, h http.Header) {
	if f.CORS != nil {
		x.corsHeaders(f.CORS, h)
	}
	if f.ResponseHeaders != nil {
		change(h, f.ResponseHeaders)
	}
}
