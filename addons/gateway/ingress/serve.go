package ingress

import (
	"net/http"
	"net/url"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/gateway/route"
)

// challenges is where an authority asks whether a host is its owner's: it is not led to
// TLS, for which there may be no certificate yet.
const challenges = "/.well-known/acme-challenge"

// RouteName is the name of an Ingress' routes in logs and metrics.
func RouteName(ing *networkingv1.Ingress) string { return "Ingress " + ing.Namespace + "/" + ing.Name }

// serve makes the routes of an Ingress that is no canary.
func (c *compilation) serve(s *subject) {
	c.secure(s)
	filters := c.filters(s)
	paths := 0
	byHost := map[string]int{} // index in mine
	var mine []*route.Route
	add := func(host string, rules ...route.Rule) {
		i, ok := byHost[host]
		if !ok {
			i = len(mine)
			byHost[host] = i
			r := &route.Route{Name: RouteName(s.ing), Created: s.ing.CreationTimestamp.Time, SingleLabel: true}
			if host != "" {
				r.Hosts = []string{host}
			}
			mine = append(mine, r)
		}
		mine[i].Rules = append(mine[i].Rules, rules...)
	}
	for i := range s.ing.Spec.Rules {
		r := &s.ing.Spec.Rules[i]
		var places []networkingv1.HTTPIngressPath
		if r.HTTP != nil {
			places = r.HTTP.Paths
		} else if s.ing.Spec.DefaultBackend != nil { // all of the host is the default backend's
			places = []networkingv1.HTTPIngressPath{{Backend: *s.ing.Spec.DefaultBackend}}
		}
		for j := range places {
			if !c.within(s, c.paths, &paths, 1+len(s.want.aliases)) {
				c.publish(s, mine)
				return
			}
			for n, host := range s.hostsOf(r) {
				if rules := c.rules(s, host, &places[j], filters, n == 0); rules != nil {
					add(host, rules...)
				}
			}
		}
	}
	if b := s.ing.Spec.DefaultBackend; b != nil {
		rest := networkingv1.HTTPIngressPath{Backend: *b}
		for host := range byHost {
			if at := (claim{host, "/", route.PathPrefix}); host != "" && c.claims[at] == (types.NamespacedName{}) {
				add(host, c.rules(s, host, &rest, filters, false)...)
			}
		}
		if rules := c.rules(s, "", &rest, filters, true); rules != nil {
			add("", rules...)
		}
	}
	c.publish(s, mine)
}

func (c *compilation) publish(s *subject, mine []*route.Route) {
	if s.want.passthrough {
		c.pass(s, mine)
		return
	}
	c.made.routes = append(c.made.routes, mine...)
	if s.want.www {
		c.fromToWWW(s, mine)
	}
}

// hostsOf are the hosts of a rule, the aliases after its own.
func (s *subject) hostsOf(r *networkingv1.IngressRule) []string {
	return append([]string{strings.ToLower(r.Host)}, s.want.aliases...)
}

// rules are those of one path of one host; none if an older Ingress has it. It tells of
// faults only once for a path of several hosts.
func (c *compilation) rules(s *subject, host string, p *networkingv1.HTTPIngressPath, f route.Filters, tell bool) []route.Rule {
	if owner := c.owners[host]; host != "" && owner != s.name.Namespace {
		s.fault("host %s is not served: it is namespace %s's, whose Ingress for it is older", clipped(host), owner)
		return nil
	}
	match, err := c.place(s, p)
	if err != nil {
		if tell {
			s.fault("path %q is not served: %v", clipped(p.Path), err)
		}
		return nil
	}
	at := claim{host, match.Path, match.PathType}
	if match.PathType == route.PathPrefix { // "/a" and "/a/" are one
		at.path = "/" + strings.Trim(match.Path, "/")
	}
	if other, taken := c.claims[at]; taken {
		if other != s.name {
			s.fault("%s is served by Ingress %s, which is older", at, other)
		}
		return nil
	}
	c.claims[at] = s.name
	rule := route.Rule{
		Name: p.Path, Matches: []route.Match{match}, Filters: f, BodyLimit: s.want.bodyLimit, Buffer: s.want.buffer,
		NoAccessLog: s.want.noAccessLog, Retry: s.want.retry, Session: s.want.session,
	}
	if f.Redirect != nil && f.Redirect.OnlyPlain && (strings.HasPrefix(match.Path, challenges) || !s.want.forceSSL && !c.secured(host)) {
		rule.Filters.Redirect = nil
	}
	if s.want.closed != "" {
		rule.Status, rule.Filters = http.StatusServiceUnavailable, route.Filters{}
		return []route.Rule{rule}
	}
	if f.Redirect != nil && !f.Redirect.OnlyPlain {
		return c.withRoot(s, rule)
	}
	if s.want.prefix != "" && s.want.rewrite != "" {
		rule.Filters.RequestHeaders = &route.Headers{Set: []route.Header{{Name: "X-Forwarded-Prefix", Value: s.want.prefix}}}
	}
	backend, err := c.backend(s, &p.Backend)
	if err != nil {
		if tell {
			s.fault("path %q is answered with 503: %v", clipped(p.Path), err)
		}
		rule.Status = http.StatusServiceUnavailable
		return c.withRoot(s, rule)
	}
	rule.Backends = []route.Share{{Backend: backend, Weight: 1}}
	if rule.Filters.ErrorPages = c.errorPages(s, &p.Backend); rule.Filters.ErrorPages == nil {
		rule.Filters.ErrorPages = f.ErrorPages
	}
	return c.withRoot(s, c.canaried(s, at, rule)...)
}

// withRoot leads from the root of a host to the application's.
func (c *compilation) withRoot(s *subject, rules ...route.Rule) []route.Rule {
	if s.want.appRoot == "" || s.want.closed != "" || rules[0].Matches[0].Path != "/" {
		return rules
	}
	root := route.Rule{Name: "app-root", Matches: []route.Match{{PathType: route.PathExact, Path: "/"}}, NoAccessLog: s.want.noAccessLog}
	root.Filters.Redirect = &route.Redirect{Path: &route.PathChange{Full: &s.want.appRoot}, Code: http.StatusFound}
	return append([]route.Rule{root}, rules...)
}

// secured says whether a host has a certificate, of its own namespace.
func (c *compilation) secured(host string) bool {
	if _, ok := c.names[host]; ok {
		return true
	}
	_, rest, ok := strings.Cut(host, ".")
	_, wild := c.names["*."+rest]
	return ok && wild && c.owners["*."+rest] == c.owners[host]
}

// filters are those of all paths of an Ingress.
func (c *compilation) filters(s *subject) (f route.Filters) {
	w := s.want
	if !w.sticky {
		w.session = nil
	}
	if w.expires > 0 && w.session != nil && w.session.MaxAge == 0 {
		w.session.MaxAge = w.expires
	}
	if w.retry.Attempts > 0 || w.tries != 3 {
		if w.retry.Attempts = w.tries - 1; w.tries == 0 { // as many as there are
			w.retry.Attempts = maxTries
		}
		w.retry.Attempts = max(min(w.retry.Attempts, maxTries), 0)
	}
	if to, code := w.permanent, w.permanentCode; to != "" || w.temporal != "" {
		if w.temporal != "" {
			to, code = w.temporal, w.temporalCode
		}
		f.Redirect = &route.Redirect{Location: to, Code: code}
		return f // who is led away is asked nothing
	}
	if w.sslRedirect || w.forceSSL {
		f.Redirect = &route.Redirect{Scheme: "https", Code: http.StatusPermanentRedirect, OnlyPlain: true}
	}
	if len(w.access.Allow) > 0 || len(w.access.Deny) > 0 {
		f.Access = &w.access
	}
	if f.Auth, f.Limit, f.ResponseHeaders = c.authenticate(s), s.limits(), c.customHeaders(s); w.cors.on {
		f.CORS = &w.cors.CORS
	}
	if w.rewrite != "" || w.vhost != "" {
		f.Rewrite = &route.Rewrite{Hostname: w.vhost}
		if w.rewrite != "" {
			f.Rewrite.Path = &route.PathChange{Template: w.rewrite}
		}
	}
	if strings.Contains(w.vhost, "$") {
		s.fault("annotation upstream-vhost is not followed: variables are not served")
		f.Rewrite.Hostname = ""
	}
	if w.mirror != "" {
		f.Mirrors = c.mirrors(s)
	}
	return f
}

// maxTries bounds how often one request is sent.
const maxTries = 10

// mirrors is the Service that gets copies of requests.
func (c *compilation) mirrors(s *subject) []route.Mirror {
	to := s.want.mirror
	if before, _, ok := strings.Cut(to, "$"); ok { // $request_uri is what a copy has anyway
		to = before
	}
	u, err := url.Parse(to)
	if err == nil {
		if name, port, ok := c.inside(u); ok {
			as := route.Backend{}
			if u.Scheme == "https" {
				as.Protocol = route.BackendHTTPS
			}
			backend, err := "", c.permitted(s, name)
			if err == nil {
				backend, err = c.service(name, port, as, s)
			}
			if err == nil {
				return []route.Mirror{{Backend: backend, Numerator: 1, Denominator: 1}}
			}
			s.fault("annotation mirror-target is not followed: %v", err)
			return nil
		}
	}
	s.fault("annotation mirror-target is not followed: %q is no Service of the cluster, such as http://NAME.NAMESPACE.svc.%s", clipped(s.want.mirror), c.Domain)
	return nil
}

// errorPages is the backend that answers in another's place.
func (c *compilation) errorPages(s *subject, of *networkingv1.IngressBackend) *route.ErrorPages {
	w := s.want
	pages := &route.ErrorPages{Codes: w.errorCodes, Unavailable: w.defaultBackend != ""}
	var err error
	switch {
	case w.defaultBackend != "":
		name, ok := localName(s, w.defaultBackend)
		svc := c.Service(types.NamespacedName{Namespace: s.name.Namespace, Name: name})
		if !ok || svc == nil || len(svc.Spec.Ports) == 0 {
			s.fault("annotation default-backend is not followed: Service %q with a port was not found in the Ingress' namespace", clipped(w.defaultBackend))
			return nil
		}
		pages.Backend, err = c.service(types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, portOf(svc), route.Backend{}, s)
	case len(w.errorCodes) > 0 && s.ing.Spec.DefaultBackend != nil:
		pages.Backend, err = c.backend(s, s.ing.Spec.DefaultBackend)
	case len(w.errorCodes) > 0:
		s.fault("annotation custom-http-errors is not followed: neither the annotation default-backend nor spec.defaultBackend names who answers")
		return nil
	default:
		return nil
	}
	if err != nil {
		s.fault("pages for errors are not served: %v", err)
		return nil
	}
	pages.Headers = []route.Header{{Name: "X-Namespace", Value: s.name.Namespace}, {Name: "X-Ingress-Name", Value: s.name.Name}}
	if of.Service != nil {
		pages.Headers = append(pages.Headers, route.Header{Name: "X-Service-Name", Value: of.Service.Name})
	}
	return pages
}

// fromToWWW leads to a host from the one that has "www." before it, or the other way
// round, unless that one is served itself.
func (c *compilation) fromToWWW(s *subject, mine []*route.Route) {
	for _, r := range mine {
		if len(r.Hosts) == 0 || strings.HasPrefix(r.Hosts[0], "*") {
			continue
		}
		to := r.Hosts[0]
		from, www := strings.CutPrefix(to, "www.")
		if !www {
			from = "www." + to
		}
		if owner, owned := c.owners[from]; owned && owner != s.name.Namespace {
			s.fault("host %s does not lead to %s: it is namespace %s's", clipped(from), clipped(to), owner)
			continue
		}
		at := claim{from, "/", route.PathPrefix}
		if _, taken := c.claims[at]; taken || c.owners[from] != "" {
			continue
		}
		c.claims[at] = s.name
		if cert, ok := c.names[to]; ok && c.names[from] == nil && cert.Leaf != nil && cert.Leaf.VerifyHostname(from) == nil {
			c.names[from] = cert
		}
		c.made.routes = append(c.made.routes, &route.Route{Name: r.Name, Created: r.Created, Hosts: []string{from}, SingleLabel: true, Rules: []route.Rule{{
			Name: "from-to-www-redirect", Filters: route.Filters{Redirect: &route.Redirect{Hostname: to, Code: http.StatusPermanentRedirect}},
		}}})
	}
}

// pass leads TLS connections on to an Ingress' backends, by their server names.
func (c *compilation) pass(s *subject, mine []*route.Route) {
	for _, r := range mine {
		if len(r.Hosts) == 0 {
			s.fault("annotation ssl-passthrough needs a host: connections without one are told apart by nothing")
			continue
		}
		var to []route.Share
		for _, rule := range r.Rules {
			if len(rule.Backends) > 0 {
				to = rule.Backends
				break
			}
		}
		c.made.passthrough = append(c.made.passthrough, route.Listener{
			Name: passthroughListener + r.Hosts[0], Port: HTTPSPort, PublicPort: HTTPSPort, Protocol: route.TLS, Hostname: r.Hosts[0], Passthrough: true,
			Streams: []route.Stream{{Name: r.Name, Created: r.Created, Hosts: r.Hosts, Backends: to}},
		})
		// Requests in plain text are led to TLS.
		plain := &route.Route{Name: r.Name, Created: r.Created, Hosts: r.Hosts, SingleLabel: true, Rules: []route.Rule{{
			Name: "ssl-passthrough", Filters: route.Filters{Redirect: &route.Redirect{Scheme: "https", Code: http.StatusPermanentRedirect}},
		}}}
		c.made.routes = append(c.made.routes, plain)
	}
}
