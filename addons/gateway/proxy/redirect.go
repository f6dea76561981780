package proxy

import (
	"cmp"
	"net"
	"net/http"
	"strings"

	"knarr/addons/gateway/route"
)

// redirect answers with another place.
func (x *exchange) redirect(r *route.Redirect) {
	h := x.w.Header()
	h["Location"] = []string{x.location(r)}
	x.responseFilters(h)
	x.answer(cmp.Or(r.Code, http.StatusFound))
}

func (x *exchange) location(r *route.Redirect) string {
	if r.Location != "" {
		return r.Location
	}
	scheme := cmp.Or(r.Scheme, x.scheme)
	host := cmp.Or(r.Hostname, x.request.Host)
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	port := publicPort(r.Port)
	if r.Port == 0 {
		switch {
		case r.Scheme == "http":
			port = "80"
		case r.Scheme == "https":
			port = "443"
		default:
			port = x.forwardedPort
		}
	}
	if port != "" && !(scheme == "http" && port == "80" || scheme == "https" && port == "443") {
		if strings.HasPrefix(host, "[") {
			host += ":" + port
		} else {
			host = net.JoinHostPort(host, port)
		}
	}
	path, query := x.path, x.query
	if r.Path != nil {
		path, query = x.changed(r.Path)
	}
	if query != "" {
		path += "?" + query
	}
	return scheme + "://" + host + path
}

// rewrite changes what the backend is asked.
func (x *exchange) rewrite(r *route.Rewrite) {
	if r.Hostname != "" {
		x.host = r.Hostname
	}
	if r.Path != nil {
		x.path, x.query = x.changed(r.Path)
	}
}

// changed is the path and the query after a change.
func (x *exchange) changed(c *route.PathChange) (path, query string) {
	switch {
	case c.Full != nil:
		return withQuery(*c.Full, x.query)
	case c.Prefix != nil:
		rest := ""
		if x.target.Match.PathType != route.PathExact {
			rest = x.path[min(len(x.target.Prefix), len(x.path)):]
		}
		return withQuery(strings.TrimSuffix(*c.Prefix, "/")+rest, x.query)
	case c.Template != "":
		p := x.target.Match.Pattern
		if p == nil { // without groups the template is the path
			return withQuery(c.Template, x.query)
		}
		at := p.FindStringSubmatchIndex(x.request.Path)
		if at == nil {
			return x.path, x.query
		}
		return withQuery(string(expand(c.Template, x.request.Path, at)), x.query)
	}
	return x.path, x.query
}

// expand puts groups in place of $1 to $9. A dollar sign before anything else is itself.
func expand(template, path string, at []int) []byte {
	out := make([]byte, 0, len(template)+len(path))
	for i := 0; i < len(template); i++ {
		if template[i] == '$' && i+1 < len(template) && '1' <= template[i+1] && template[i+1] <= '9' {
			if g := 2 * int(template[i+1]-'0'); g+1 < len(at) && at[g] >= 0 {
				out = append(out, path[at[g]:at[g+1]]...)
			}
			i++
			continue
		}
		out = append(out, template[i])
	}
	return out
}

// withQuery gives a new path its clean form, and puts a query that it brings before the
// one there is.
func withQuery(path, query string) (string, string) {
	path, own, found := strings.Cut(path, "?")
	if found && own != "" {
		if query != "" {
			own += "&" + query
		}
		query = own
	}
	return route.EncodePath(path), query
}
