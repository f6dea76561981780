package proxy

import (
	"net/http"
	"strings"
	"time"

	"knarr/addons/gateway/backend"
	"knarr/addons/gateway/route"
)

// wish is what the request says of the endpoint that it should reach.
func (x *exchange) wish(u *Upstream) (w backend.Wish) {
	if s := x.target.Action.rule.Session; s != nil {
		if s.Cookie != "" {
			w.Session, _ = route.CookieValue(x.r.Header, s.Cookie)
		} else if s.Header != "" {
			w.Session = x.r.Header.Get(s.Header)
		}
		x.session = w.Session
	}
	if u.Spec.HashBy != "" {
		w.Hash, w.Hashed = backend.Hash(x.property(u.Spec.HashBy)), true
	}
	return w
}

// property is what a backend's HashBy names.
func (x *exchange) property(by string) string {
	switch by {
	case "$remote_addr":
		return x.client.String()
	case "$request_uri":
		return x.request.Path + "?" + x.request.RawQuery
	case "$host":
		return x.request.Host
	}
	if name, ok := strings.CutPrefix(by, "$http_"); ok {
		return x.r.Header.Get(strings.ReplaceAll(name, "_", "-"))
	}
	if name, ok := strings.CutPrefix(by, "$cookie_"); ok {
		value, _ := route.CookieValue(x.r.Header, name)
		return value
	}
	if name, ok := strings.CutPrefix(by, "$arg_"); ok {
		value, _ := route.QueryValue(x.request.RawQuery, name)
		return value
	}
	return by
}

// keepSession tells the client which endpoint it was led to, unless it knows.
func (x *exchange) keepSession(u *Upstream, e *backend.Endpoint) {
	s := x.target.Action.rule.Session
	if s == nil {
		return
	}
	value := u.Set.Session(e)
	if value == x.session {
		return
	}
	x.session = value
	if s.Cookie == "" {
		x.sessionName = s.Header
		return
	}
	c := &http.Cookie{Name: s.Cookie, Value: value, Path: s.Path, Domain: s.Domain, Secure: s.Secure, HttpOnly: true}
	if c.Path == "" {
		c.Path = "/"
	}
	if s.MaxAge > 0 {
		c.MaxAge = int(s.MaxAge / time.Second)
		c.Expires = time.Now().Add(s.MaxAge)
	}
	switch strings.ToLower(s.SameSite) {
	case "strict":
		c.SameSite = http.SameSiteStrictMode
	case "lax":
		c.SameSite = http.SameSiteLaxMode
	case "none":
		c.SameSite = http.SameSiteNoneMode
	}
	x.cookie = c
}
