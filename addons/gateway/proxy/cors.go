package proxy

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"knarr/addons/gateway/route"
)

// preflight answers a browser's question whether a page of another origin may send a
// request.
func (x *exchange) preflight(c *route.CORS) bool {
	asked := x.r.Header
	if x.r.Method != http.MethodOptions || asked.Get("Origin") == "" || asked.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h := x.w.Header()
	if x.corsHeaders(c, h) {
		if methods := allow(c.Methods, asked.Get("Access-Control-Request-Method"), c.Credentials); methods != "" {
			h.Set("Access-Control-Allow-Methods", methods)
		}
		if headers := allow(c.Headers, asked.Get("Access-Control-Request-Headers"), c.Credentials); headers != "" {
			h.Set("Access-Control-Allow-Headers", headers)
		}
		if c.MaxAge > 0 {
			h.Set("Access-Control-Max-Age", strconv.Itoa(int(c.MaxAge/time.Second)))
		}
	}
	x.answer(http.StatusNoContent)
	return true
}

// allow is a list as a header says it. A "*" means nothing to browsers that
// send credentials, so what they asked for stands in its place.
func allow(list []string, asked string, credentials bool) string {
	if slices.Contains(list, "*") {
		if credentials {
			return asked
		}
		return "*"
	}
	return strings.Join(list, ", ")
}

// corsHeaders puts what CORS says of an origin into an answer's headers, and reports
// whether the origin is allowed.
func (x *exchange) corsHeaders(c *route.CORS, h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			delete(h, name)
		}
	}
	origin := x.r.Header.Get("Origin")
	all := slices.Contains(c.Origins, "*") && !c.Credentials
	if !all {
		addVary(h, "Origin")
	}
	if origin == "" || !slices.ContainsFunc(c.Origins, func(pattern string) bool { return covers(pattern, origin) }) {
		return false
	}
	if all {
		origin = "*"
	}
	h.Set("Access-Control-Allow-Origin", origin)
	if c.Credentials {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
	if len(c.Expose) > 0 {
		h.Set("Access-Control-Expose-Headers", strings.Join(c.Expose, ", "))
	}
	return true
}

func addVary(h http.Header, name string) {
	for _, line := range h["Vary"] {
		for item := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(item), name) {
				return
			}
		}
	}
	h.Add("Vary", name)
}

// covers reports whether a pattern with at most one "*" covers an origin. Schemes and
// hosts have no case.
func covers(pattern, origin string) bool {
	pattern, origin = strings.ToLower(pattern), strings.ToLower(origin)
	before, after, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == origin
	}
	return len(origin) > len(before)+len(after) && strings.HasPrefix(origin, before) && strings.HasSuffix(origin, after) || pattern == "*"
}
