package proxy

import (
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"

	"knarr/addons/gateway/route"
)

// An action is a rule as the proxy does it.
type action struct {
	route   string
	rule    *route.Rule
	filters filters
	shares  []share
	total   int // of the shares' weights
}

// A share is a backend and where its part of the weights ends.
type share struct {
	upstream *Upstream // nil: the answer is 500
	filters  filters
	until    int
}

// filters are those of a rule or of a share, prepared.
type filters struct {
	route.Filters
	limiter *limiter
	auth    *authenticator
	mirrors []mirror
	errors  *errorPages
	any     bool
	at      place
}

// A compiler makes a Config's sites of those before.
type compiler struct {
	proxy   *Proxy
	before  map[string]*Site
	changed map[string]bool // the backends that were not there before, or are others now
	tables  map[sameRoutes]*route.Table[*action]
}

// sameRoutes are the routes of several listeners, which have one table.
type sameRoutes struct {
	first **route.Route
	n     int
}

func (c *compiler) table(l *route.Listener) *route.Table[*action] {
	if len(l.Routes) == 0 {
		return &route.Table[*action]{}
	}
	key := sameRoutes{&l.Routes[0], len(l.Routes)}
	t := c.tables[key]
	if t == nil {
		before := &route.Table[*action]{}
		if site := c.before[l.Name]; site != nil {
			before = site.table
		}
		var keep func(*route.Target[*action]) bool
		if len(c.changed) > 0 {
			keep = func(t *route.Target[*action]) bool { return !c.touched(t.Rule) }
		}
		t = before.Next(l.Routes, func(r *route.Route, rule *route.Rule) *action { return c.action(l, r, rule) }, keep)
		c.tables[key] = t
	}
	return t
}

// sweep forgets the limiters of places that are no more.
func (c *compiler) sweep() {
	if len(c.proxy.limiters) == 0 {
		return
	}
	used := map[place]*limiter{}
	carry := func(f *filters) {
		if f.limiter != nil {
			used[f.at] = f.limiter
		}
	}
	for _, t := range c.tables {
		t.Targets(func(t *route.Target[*action]) bool {
			carry(&t.Action.filters)
			for i := range t.Action.shares {
				carry(&t.Action.shares[i].filters)
			}
			return true
		})
	}
	c.proxy.limiters = used
}

// touched says whether a rule leads to a backend that has changed.
func (c *compiler) touched(r *route.Rule) bool {
	of := func(f *route.Filters) bool {
		return f.Auth != nil && c.changed[f.Auth.Backend] || f.ErrorPages != nil && c.changed[f.ErrorPages.Backend] ||
			slices.ContainsFunc(f.Mirrors, func(m route.Mirror) bool { return c.changed[m.Backend] })
	}
	return of(&r.Filters) || slices.ContainsFunc(r.Backends, func(b route.Share) bool { return c.changed[b.Backend] || of(&b.Filters) })
}

func (c *compiler) site(l *route.Listener) *Site {
	s := &Site{Listener: l, table: c.table(l)}
	if l.HTTP3Port != 0 {
		s.alternative = []string{`h3=":` + publicPort(l.PublicPort) + `"; ma=86400`}
		for _, h := range l.HTTP3Hosts {
			s.http3.Set(h, true, true)
		}
		if len(l.HTTP3Hosts) == 0 {
			s.http3.Set("", false, true)
		}
	}
	if l.Challenge != "" {
		for _, h := range l.ChallengeHosts {
			s.challenged.Set(h, true, true)
		}
	}
	return s
}

// A place is where filters stand, which stays while a Config changes around them.
type place struct {
	listener, route string
	rule, share     int
}

func (c *compiler) action(l *route.Listener, r *route.Route, rule *route.Rule) *action {
	at := place{l.Name, r.Name, 0, -1}
	for i := range r.Rules {
		if &r.Rules[i] == rule {
			at.rule = i
		}
	}
	a := &action{route: r.Name, rule: rule, filters: c.filters(&rule.Filters, at), shares: make([]share, 0, len(rule.Backends))}
	for i := range rule.Backends {
		b := &rule.Backends[i]
		if b.Weight <= 0 {
			continue
		}
		a.total += b.Weight
		at.share = i
		s := share{until: a.total, filters: c.filters(&b.Filters, at)}
		if !b.Invalid {
			s.upstream = c.proxy.upstreams[b.Backend]
		}
		a.shares = append(a.shares, s)
	}
	return a
}

// choose takes a share at random by the weights; nil when there is none.
func (a *action) choose() *share {
	switch len(a.shares) {
	case 0:
		return nil
	case 1:
		return &a.shares[0]
	}
	n := rand.IntN(a.total)
	i := slices.IndexFunc(a.shares, func(s share) bool { return n < s.until })
	return &a.shares[i]
}

func (c *compiler) filters(of *route.Filters, at place) filters {
	f := filters{Filters: *of}
	f.any = of.Access != nil || of.Auth != nil || of.CORS != nil || of.Limit != nil || of.RequestHeaders != nil || of.ResponseHeaders != nil ||
		of.Redirect != nil || of.Rewrite != nil || len(of.Mirrors) > 0 || of.ErrorPages != nil
	if !f.any {
		return f
	}
	if of.Limit != nil {
		// A client's count goes on while its limit stays the same.
		if f.limiter = c.proxy.limiters[at]; f.limiter == nil || !reflect.DeepEqual(f.limiter.Limit, *of.Limit) {
			f.limiter = newLimiter(*of.Limit)
		}
		c.proxy.limiters[at], f.at = f.limiter, at
	}
	if of.Auth != nil {
		f.auth = newAuthenticator(of.Auth, c.proxy)
	}
	for _, m := range of.Mirrors {
		if u := c.proxy.upstreams[m.Backend]; u != nil {
			f.mirrors = append(f.mirrors, mirror{m, u})
		}
	}
	if e := of.ErrorPages; e != nil {
		if u := c.proxy.upstreams[e.Backend]; u != nil {
			f.errors = &errorPages{ErrorPages: e, upstream: u}
		}
	}
	f.RequestHeaders, f.ResponseHeaders = canonical(of.RequestHeaders), canonical(of.ResponseHeaders)
	return f
}

// canonical is changes of headers with names as in http.Header.
func canonical(h *route.Headers) *route.Headers {
	if h == nil {
		return nil
	}
	names := func(of []route.Header) []route.Header {
		of = slices.Clone(of)
		for i := range of {
			of[i].Name = http.CanonicalHeaderKey(of[i].Name)
		}
		return of
	}
	c := &route.Headers{Set: names(h.Set), Add: names(h.Add), Remove: slices.Clone(h.Remove)}
	for i := range c.Remove {
		c.Remove[i] = http.CanonicalHeaderKey(c.Remove[i])
	}
	return c
}

// sameBackend reports whether two specifications lead to the same connections.
func sameBackend(a, b *route.Backend) bool {
	if (a.CAs == nil) != (b.CAs == nil) || a.CAs != nil && a.CAs != b.CAs && !a.CAs.Equal(b.CAs) {
		return false
	}
	if a.Certificate != b.Certificate && (a.Certificate == nil || b.Certificate == nil ||
		!slices.EqualFunc(a.Certificate.Certificate, b.Certificate.Certificate, slices.Equal[[]byte])) {
		return false
	}
	return a.Protocol == b.Protocol && a.ServerName == b.ServerName && a.SystemCAs == b.SystemCAs && slices.Equal(a.Names, b.Names) &&
		a.ConnectTimeout == b.ConnectTimeout && a.ReadTimeout == b.ReadTimeout && a.WriteTimeout == b.WriteTimeout &&
		a.HashBy == b.HashBy && a.ProxyProtocol == b.ProxyProtocol
}
