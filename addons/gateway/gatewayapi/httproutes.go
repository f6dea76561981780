package gatewayapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/ingress"
	"knarr/addons/gateway/route"
)

// httpRoutes attaches the HTTPRoutes.
func (c *compilation) httpRoutes() {
	eachRoute(c, "HTTPRoute", c.HTTPRoutes, func(of *gw.HTTPRoute) {
		s := &subject{Object: of, kind: "HTTPRoute", name: nameOf(of), parents: of.Spec.ParentRefs, hostnames: of.Spec.Hostnames, hosted: true}
		c.attach(s, func(at []attachment) (accepted, references verdict) {
			return c.publish(s, at, func(g *gateway) ([]route.Rule, verdict, verdict) { return c.httpRules(s, g, of.Spec.Rules) })
		})
	})
}

// publish puts the rules of a route at the listeners that it is attached to. The rules are
// made once for each Gateway.
func (c *compilation) publish(s *subject, at []attachment, rules func(*gateway) ([]route.Rule, verdict, verdict)) (accepted, references verdict) {
	made, most := map[*gateway][]route.Rule{}, 0
	for _, a := range at {
		of, ok := made[a.of]
		if !ok {
			var refused, unresolved verdict
			if of, refused, unresolved = rules(a.of); refused.reason != "" {
				accepted, of = refused, nil
			}
			if unresolved.reason != "" {
				references = unresolved
			}
			made[a.of] = of
		}
		most = max(most, paths(of, a.hosts))
	}
	if !c.within(s, most) {
		return verdict{string(gw.RouteReasonUnsupportedValue), fmt.Sprintf("the routes of namespace %s have more than %d matches, each counted for every host; those of the oldest are served", s.name.Namespace, ingress.MaxPathsEach)}, references
	}
	for _, a := range at {
		if of := made[a.of]; of != nil {
			c.made.routes = append(c.made.routes, placed[*route.Route]{a.slot, &route.Route{Name: string(s.kind) + " " + s.name.String(), Created: s.GetCreationTimestamp().Time, Hosts: a.hosts, Rules: of}})
		}
	}
	if len(at) == 0 { // its references are judged all the same
		_, _, references = rules(&gateway{})
	}
	return accepted, references
}

// within counts the matches of a route, once for all its listeners and parents, and says
// whether its namespace may have them.
func (c *compilation) within(s *subject, n int) bool {
	more := max(n-s.counted, 0)
	sofar := c.made.count.now(c.known.round)
	if *sofar+more > ingress.MaxPathsEach {
		c.made.again = false
		return false
	}
	*sofar += more
	s.counted += more
	c.made.counted = s.counted
	return true
}

// paths is how many matches rules have for some hosts.
func paths(of []route.Rule, hosts []string) (n int) {
	for i := range of {
		n += max(len(of[i].Matches), 1)
	}
	return n * max(len(hosts), 1)
}

// httpRules are those of an HTTPRoute. A route with a rule that cannot be served is refused
// as a whole.
func (c *compilation) httpRules(s *subject, g *gateway, of []gw.HTTPRouteRule) (all []route.Rule, refused, unresolved verdict) {
	from := grantFrom{string(s.kind), s.name.Namespace}
	for i := range of {
		r := &of[i]
		rule := route.Rule{Name: ruleName(r.Name, i)}
		for j := range r.Matches {
			m, err := c.httpMatch(&r.Matches[j])
			if err != nil {
				return nil, verdict{string(gw.RouteReasonUnsupportedValue), err.Error()}, unresolved
			}
			rule.Matches = append(rule.Matches, m)
		}
		f, bad, missing := c.httpFilters(g, from, r.Filters)
		if bad.reason != "" {
			return nil, bad, unresolved
		}
		rule.Filters = f
		for j := range r.BackendRefs {
			shares, fault := c.shares(g, from, []gw.BackendRef{r.BackendRefs[j].BackendRef}, corev1.ProtocolTCP, spokenHTTP)
			own, bad, lost := c.httpFilters(g, from, r.BackendRefs[j].Filters)
			if bad.reason != "" {
				return nil, bad, unresolved
			}
			shares[0].Filters = own
			rule.Backends = append(rule.Backends, shares...)
			for _, v := range []verdict{fault, lost} {
				if v.reason != "" {
					unresolved = v
				}
			}
		}
		if missing.reason != "" {
			unresolved = missing
		}
		if err := times(&rule, r.Timeouts, r.Retry); err != nil {
			return nil, verdict{string(gw.RouteReasonUnsupportedValue), err.Error()}, unresolved
		}
		all = append(all, rule)
	}
	return all, refused, unresolved
}

func ruleName(name *gw.SectionName, i int) string {
	if name != nil {
		return string(*name)
	}
	return fmt.Sprint(i)
}

// times are the bounds of a rule's requests, and whether they are repeated.
func times(rule *route.Rule, t *gw.HTTPRouteTimeouts, r *gw.HTTPRouteRetry) (err error) {
	take := func(to *time.Duration, d *gw.Duration) {
		if d == nil || err != nil {
			return
		}
		*to, err = time.ParseDuration(string(*d))
	}
	if t != nil {
		take(&rule.Timeout, t.Request)
		take(&rule.BackendTimeout, t.BackendRequest)
	}
	if r != nil {
		const most = 10
		rule.Retry.Attempts = 1
		if r.Attempts != nil {
			rule.Retry.Attempts = max(min(*r.Attempts, most), 0)
		}
		for _, code := range r.Codes {
			rule.Retry.Codes = append(rule.Retry.Codes, int(code))
		}
		take(&rule.Retry.Backoff, r.Backoff)
	}
	return err
}

func (c *compilation) httpMatch(of *gw.HTTPRouteMatch) (m route.Match, err error) {
	m.PathType, m.Path = route.PathPrefix, "/"
	if p := of.Path; p != nil {
		if p.Value != nil {
			m.Path = *p.Value
		}
		kind := gw.PathMatchPathPrefix
		if p.Type != nil {
			kind = *p.Type
		}
		switch kind {
		case gw.PathMatchExact:
			m.PathType = route.PathExact
		case gw.PathMatchPathPrefix:
		case gw.PathMatchRegularExpression:
			m.PathType = route.PathRegexp
			if m.Pattern, err = c.Parsed.Part("^(?:", m.Path, ")"); err != nil {
				return m, fmt.Errorf("path: %w", err)
			}
		default:
			return m, fmt.Errorf("paths of type %q are not served", kind)
		}
	}
	if of.Method != nil {
		m.Method = string(*of.Method)
	}
	for _, h := range of.Headers {
		v, err := c.value(string(h.Name), h.Value, h.Type != nil && *h.Type == gw.HeaderMatchRegularExpression)
		if err != nil {
			return m, fmt.Errorf("header: %w", err)
		}
		if !slices.ContainsFunc(m.Headers, func(have route.Value) bool { return strings.EqualFold(have.Name, v.Name) }) { // the first one counts
			m.Headers = append(m.Headers, v)
		}
	}
	for _, q := range of.QueryParams {
		v, err := c.value(string(q.Name), q.Value, q.Type != nil && *q.Type == gw.QueryParamMatchRegularExpression)
		if err != nil {
			return m, fmt.Errorf("query parameter: %w", err)
		}
		if !slices.ContainsFunc(m.Query, func(have route.Value) bool { return have.Name == v.Name }) {
			m.Query = append(m.Query, v)
		}
	}
	return m, nil
}

func (c *compilation) value(name, value string, expression bool) (v route.Value, err error) {
	v.Name = name
	if expression {
		v.Pattern, err = c.Parsed.Pattern(value)
		return v, err
	}
	v.Exact, v.Present = value, value == ""
	return v, nil
}

// httpFilters are those of a rule or of a backend: bad refuses the route, missing is a
// reference that leads nowhere.
func (c *compilation) httpFilters(g *gateway, from grantFrom, of []gw.HTTPRouteFilter) (f route.Filters, bad, missing verdict) {
	unsupported := func(format string, args ...any) verdict {
		return verdict{string(gw.RouteReasonUnsupportedValue), fmt.Sprintf(format, args...)}
	}
	for i := range of {
		switch x := &of[i]; {
		case x.Type == gw.HTTPRouteFilterRequestHeaderModifier && x.RequestHeaderModifier != nil:
			f.RequestHeaders = headers(x.RequestHeaderModifier)
		case x.Type == gw.HTTPRouteFilterResponseHeaderModifier && x.ResponseHeaderModifier != nil:
			f.ResponseHeaders = headers(x.ResponseHeaderModifier)
		case x.Type == gw.HTTPRouteFilterRequestRedirect && x.RequestRedirect != nil:
			f.Redirect = redirect(x.RequestRedirect)
		case x.Type == gw.HTTPRouteFilterURLRewrite && x.URLRewrite != nil:
			f.Rewrite = &route.Rewrite{Path: pathChange(x.URLRewrite.Path)}
			if x.URLRewrite.Hostname != nil {
				f.Rewrite.Hostname = string(*x.URLRewrite.Hostname)
			}
		case x.Type == gw.HTTPRouteFilterRequestMirror && x.RequestMirror != nil:
			m, why := c.mirror(g, from, x.RequestMirror, spokenHTTP)
			if why.reason != "" {
				missing = why
				continue
			}
			f.Mirrors = append(f.Mirrors, m)
		case x.Type == gw.HTTPRouteFilterCORS && x.CORS != nil:
			f.CORS = cors(x.CORS)
		case x.Type == gw.HTTPRouteFilterExtensionRef:
			return f, unsupported("filters that are objects of their own are not served"), missing
		default:
			return f, unsupported("filters of type %q are not served", x.Type), missing
		}
	}
	if f.Redirect != nil && f.Rewrite != nil {
		return f, verdict{string(gw.RouteReasonIncompatibleFilters), "a request cannot be redirected and rewritten"}, missing
	}
	return f, bad, missing
}

func headers(of *gw.HTTPHeaderFilter) *route.Headers {
	h := &route.Headers{Remove: of.Remove}
	for _, one := range of.Set {
		h.Set = append(h.Set, route.Header{Name: string(one.Name), Value: one.Value})
	}
	for _, one := range of.Add {
		h.Add = append(h.Add, route.Header{Name: string(one.Name), Value: one.Value})
	}
	return h
}

func redirect(of *gw.HTTPRequestRedirectFilter) *route.Redirect {
	r := &route.Redirect{Path: pathChange(of.Path), Code: http.StatusFound}
	if of.Scheme != nil {
		r.Scheme = *of.Scheme
	}
	if of.Hostname != nil {
		r.Hostname = string(*of.Hostname)
	}
	if of.Port != nil {
		r.Port = uint16(*of.Port)
	}
	if of.StatusCode != nil {
		r.Code = *of.StatusCode
	}
	return r
}

func pathChange(of *gw.HTTPPathModifier) *route.PathChange {
	if of == nil {
		return nil
	}
	if of.Type == gw.FullPathHTTPPathModifier {
		return &route.PathChange{Full: of.ReplaceFullPath}
	}
	return &route.PathChange{Prefix: of.ReplacePrefixMatch}
}

func (c *compilation) mirror(g *gateway, from grantFrom, of *gw.HTTPRequestMirrorFilter, spoken protocolOf) (m route.Mirror, why verdict) {
	name, why := c.backend(g, from, &of.BackendRef, corev1.ProtocolTCP, spoken)
	m = route.Mirror{Backend: name, Numerator: 1, Denominator: 1}
	switch {
	case of.Percent != nil:
		m.Numerator, m.Denominator = int(*of.Percent), 100
	case of.Fraction != nil:
		m.Numerator, m.Denominator = int(of.Fraction.Numerator), 100
		if of.Fraction.Denominator != nil {
			m.Denominator = int(*of.Fraction.Denominator)
		}
	}
	return m, why
}

func cors(of *gw.HTTPCORSFilter) *route.CORS {
	c := &route.CORS{MaxAge: time.Duration(of.MaxAge) * time.Second, Credentials: of.AllowCredentials != nil && *of.AllowCredentials}
	for _, o := range of.AllowOrigins {
		c.Origins = append(c.Origins, string(o))
	}
	for _, m := range of.AllowMethods {
		c.Methods = append(c.Methods, string(m))
	}
	for _, h := range of.AllowHeaders {
		c.Headers = append(c.Headers, string(h))
	}
	for _, h := range of.ExposeHeaders {
		c.Expose = append(c.Expose, string(h))
	}
	return c
}
