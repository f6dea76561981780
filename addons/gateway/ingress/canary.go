package ingress

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"knarr/addons/gateway/route"
)

// A canary is a backend that gets a part of the requests of another Ingress' path.
type canary struct {
	of      *subject
	at      claim
	backend string
	pattern *regexp.Regexp
	used    bool
}

// offer notes the paths of a canary. One path has one canary: the oldest.
func (c *compilation) offer(s *subject) {
	w := &s.want.canary
	var pattern *regexp.Regexp
	if w.header != "" && w.value == "" && w.pattern != "" {
		var err error
		if pattern, err = c.Parsed.Pattern(w.pattern); err != nil {
			s.fault("annotation canary-by-header-pattern is not followed: %v", err)
			w.header, w.pattern = "", ""
		}
	}
	if w.header == "" && (w.value != "" || w.pattern != "") {
		s.fault("annotations canary-by-header-value and canary-by-header-pattern need canary-by-header")
	}
	if w.weight > w.total {
		s.fault("annotation canary-weight is more than the total of %d", w.total)
		w.weight = w.total
	}
	c.secure(s)
	paths := 0
	for i := range s.ing.Spec.Rules {
		r := &s.ing.Spec.Rules[i]
		if r.HTTP == nil {
			continue
		}
		for j := range r.HTTP.Paths {
			if !c.within(s, c.offered, &paths, 1) {
				return
			}
			p := &r.HTTP.Paths[j]
			if owner := c.owners[strings.ToLower(r.Host)]; r.Host != "" && owner != s.name.Namespace {
				s.fault("host %s has no canary of this Ingress: it is namespace %s's, whose Ingress for it is older", clipped(r.Host), owner)
				continue
			}
			at := claim{host: strings.ToLower(r.Host), path: p.Path}
			if at.path = "/" + strings.Trim(p.Path, "/"); p.PathType != nil && *p.PathType == "Exact" {
				at.path, at.kind = p.Path, route.PathExact
			}
			backend, err := c.backend(s, &p.Backend)
			if err != nil {
				s.fault("path %q has no canary: %v", clipped(p.Path), err)
				continue
			}
			if other, taken := c.canaries[at]; taken {
				s.fault("%s has the canary %s, which is older", at, other.of.name)
				continue
			}
			c.canaries[at] = &canary{of: s, at: at, backend: backend, pattern: pattern}
		}
	}
}

// canary is what a canary of a path is offered for.
func (c claim) canary() claim {
	if c.kind == route.PathExact {
		return c
	}
	return claim{host: c.host, path: "/" + strings.Trim(c.path, "/")}
}

// canaried are the rules of a path, with those of its canary before them: by header,
// by cookie, then by weight.
func (c *compilation) canaried(s *subject, at claim, rule route.Rule) []route.Rule {
	offered := c.canaries[at.canary()]
	if offered == nil {
		return []route.Rule{rule}
	}
	offered.used = true
	w := &offered.of.want.canary
	match := rule.Matches[0]
	var rules []route.Rule
	to := []route.Share{{Backend: offered.backend, Weight: 1}}
	when := func(suffix string, backends []route.Share, change func(*route.Match)) {
		r, m := rule, match
		change(&m)
		r.Name, r.Matches, r.Backends = rule.Name+" ("+suffix+")", []route.Match{m}, backends
		rules = append(rules, r)
	}
	header := func(v route.Value) func(*route.Match) {
		return func(m *route.Match) { v.Name = w.header; m.Headers = append(slices.Clone(m.Headers), v) }
	}
	switch {
	case w.header == "":
	case w.value != "":
		when("canary by header", to, header(route.Value{Exact: w.value}))
	case offered.pattern != nil:
		when("canary by header", to, header(route.Value{Pattern: offered.pattern}))
	default:
		when("canary by header", to, header(route.Value{Exact: "always"}))
		when("never canary by header", rule.Backends, header(route.Value{Exact: "never"}))
	}
	if w.cookie != "" {
		for _, one := range []struct {
			value, name string
			to          []route.Share
		}{{"always", "canary by cookie", to}, {"never", "never canary by cookie", rule.Backends}} {
			when(one.name, one.to, func(m *route.Match) {
				m.Cookies = append(slices.Clone(m.Cookies), route.Value{Name: w.cookie, Exact: one.value})
			})
		}
	}
	if w.weight > 0 {
		rule.Backends = []route.Share{{Backend: rule.Backends[0].Backend, Weight: w.total - w.weight}, {Backend: offered.backend, Weight: w.weight}}
	}
	return append(rules, rule)
}

// portOf is the first port of a Service.
func portOf(svc *corev1.Service) string {
	return strconv.Itoa(int(svc.Spec.Ports[0].Port))
}
