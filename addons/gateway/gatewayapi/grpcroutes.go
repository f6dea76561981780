package gatewayapi

import (
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/route"
)

// grpcRoutes attaches the GRPCRoutes.
func (c *compilation) grpcRoutes() {
	eachRoute(c, "GRPCRoute", c.GRPCRoutes, func(of *gw.GRPCRoute) {
		s := &subject{Object: of, kind: "GRPCRoute", name: nameOf(of), parents: of.Spec.ParentRefs, hostnames: of.Spec.Hostnames, hosted: true}
		c.attach(s, func(at []attachment) (accepted, references verdict) {
			return c.publish(s, at, func(g *gateway) ([]route.Rule, verdict, verdict) { return c.grpcRules(s, g, of.Spec.Rules) })
		})
	})
}

func (c *compilation) grpcRules(s *subject, g *gateway, of []gw.GRPCRouteRule) (all []route.Rule, refused, unresolved verdict) {
	from := grantFrom{string(s.kind), s.name.Namespace}
	for i := range of {
		r := &of[i]
		rule := route.Rule{Name: ruleName(r.Name, i)}
		for j := range r.Matches {
			m, err := c.grpcMatch(&r.Matches[j])
			if err != nil {
				return nil, verdict{string(gw.RouteReasonUnsupportedValue), err.Error()}, unresolved
			}
			rule.Matches = append(rule.Matches, m)
		}
		if len(rule.Matches) == 0 {
			rule.Matches = []route.Match{{PathType: route.PathPrefix, Path: "/", GRPC: true}}
		}
		f, bad, missing := c.httpFilters(g, from, httpForm(r.Filters))
		if bad.reason != "" {
			return nil, bad, unresolved
		}
		rule.Filters = f
		if missing.reason != "" {
			unresolved = missing
		}
		for j := range r.BackendRefs {
			shares, fault := c.shares(g, from, []gw.BackendRef{r.BackendRefs[j].BackendRef}, corev1.ProtocolTCP, spokenGRPC)
			own, bad, lost := c.httpFilters(g, from, httpForm(r.BackendRefs[j].Filters))
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
		all = append(all, rule)
	}
	return all, refused, unresolved
}

// httpForm are the filters as an HTTPRoute has them: their names are the same.
func httpForm(of []gw.GRPCRouteFilter) (all []gw.HTTPRouteFilter) {
	for _, f := range of {
		all = append(all, gw.HTTPRouteFilter{Type: gw.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
			ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef})
	}
	return all
}

func (c *compilation) grpcMatch(of *gw.GRPCRouteMatch) (m route.Match, err error) {
	m = route.Match{PathType: route.PathPrefix, Path: "/", GRPC: true}
	if p := of.Method; p != nil {
		service, method := "", ""
		if p.Service != nil {
			service = *p.Service
		}
		if p.Method != nil {
			method = *p.Method
		}
		expression := p.Type != nil && *p.Type == gw.GRPCMethodMatchRegularExpression
		switch {
		case !expression && service != "" && method != "":
			m.PathType, m.Path = route.PathExact, "/"+service+"/"+method
		case !expression && service != "":
			m.Path = "/" + service + "/"
		default:
			if !expression {
				service, method = regexp.QuoteMeta(service), regexp.QuoteMeta(method)
			}
			if service == "" {
				service = "[^/]+"
			}
			if method == "" {
				method = "[^/]+"
			}
			m.PathType, m.Path = route.PathRegexp, "/"+service+"/"+method
			if _, err = c.Parsed.Pattern(service); err == nil {
				m.Pattern, err = c.Parsed.Part("^/(?:"+service+")/(?:", method, ")$")
			}
			if err != nil {
				return m, fmt.Errorf("method: %w", err)
			}
		}
	}
	for _, h := range of.Headers {
		v, err := c.value(string(h.Name), h.Value, h.Type != nil && *h.Type == gw.GRPCHeaderMatchRegularExpression)
		if err != nil {
			return m, fmt.Errorf("header: %w", err)
		}
		m.Headers = append(m.Headers, v)
	}
	return m, nil
}
