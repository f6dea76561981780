package ingress

import (
	"fmt"
	"regexp"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"knarr/addons/gateway/route"
)

// place is the match of an Ingress' path.
func (c *compilation) place(s *subject, p *networkingv1.HTTPIngressPath) (route.Match, error) {
	path, kind := p.Path, networkingv1.PathTypeImplementationSpecific
	if p.PathType != nil {
		kind = *p.PathType
	}
	if path == "" {
		path = "/"
	}
	switch {
	case len(path) > maxPathSize:
		return route.Match{}, fmt.Errorf("the path is longer than %d bytes", maxPathSize)
	case !strings.HasPrefix(path, "/") && !s.want.regexps:
		return route.Match{}, fmt.Errorf("the path does not begin with a slash")
	case !s.want.regexps && s.want.rewrite == "":
		if kind == networkingv1.PathTypeExact {
			return route.Match{PathType: route.PathExact, Path: path}, nil
		}
		return route.Match{PathType: route.PathPrefix, Path: path}, nil
	}
	if _, err := c.Parsed.Pattern(path); err != nil && !plain(path, s.want.regexps) {
		return route.Match{}, err
	}
	re, err := c.Parsed.Pattern(expression(path, kind, s.want.regexps))
	if err != nil {
		return route.Match{}, err
	}
	return route.Match{PathType: route.PathRegexp, Path: path, Pattern: re}, nil
}

// plain says that a path has no operator; given, that it is an expression anyway.
func plain(path string, given bool) bool {
	return regexp.QuoteMeta(path) == path || !given && !strings.ContainsAny(path, `()[]*+?|^$\`)
}

// expression is the pattern of a path, without regard to case, as in ingress-nginx: what
// has an operator in it is a pattern as it stands, anchored at its begin; a plain path
// is matched by its type.
func expression(path string, kind networkingv1.PathType, given bool) string {
	plain := plain(path, given)
	switch {
	case kind == networkingv1.PathTypeExact && plain:
		return "(?i)^" + regexp.QuoteMeta(path) + "$"
	case kind == networkingv1.PathTypeExact:
		return "(?i)^(?:" + path + ")$"
	case plain && kind == networkingv1.PathTypePrefix:
		if trimmed := strings.TrimRight(path, "/"); trimmed != "" {
			return "(?i)^" + regexp.QuoteMeta(trimmed) + "(?:/|$)"
		}
		return "(?i)^/"
	case plain:
		return "(?i)^" + regexp.QuoteMeta(path)
	}
	return "(?i)^" + strings.TrimPrefix(path, "^")
}
