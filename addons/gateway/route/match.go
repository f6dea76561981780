package route

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// A Request is what is matched of a request. Host and Path are clean.
type Request struct {
	Host, Path, Method, RawQuery string
	Header                       http.Header
	Source                       netip.Addr
}

// conditions reports whether all but the path of a Match holds.
func (m *Match) conditions(r *Request) bool {
	if m.Method != "" && m.Method != r.Method {
		return false
	}
	if m.GRPC && !IsGRPC(r.Header) {
		return false
	}
	for i := range m.Headers {
		if v := &m.Headers[i]; !v.holds(headerValue(r.Header, v.Name)) {
			return false
		}
	}
	for i := range m.Cookies {
		if v := &m.Cookies[i]; !v.holds(CookieValue(r.Header, v.Name)) {
			return false
		}
	}
	for i := range m.Query {
		if v := &m.Query[i]; !v.holds(QueryValue(r.RawQuery, v.Name)) {
			return false
		}
	}
	if len(m.Sources) == 0 {
		return true
	}
	for _, p := range m.Sources {
		if p.Contains(r.Source) {
			return true
		}
	}
	return false
}

func (m *Match) unconditional() bool {
	return m.Method == "" && !m.GRPC && len(m.Headers) == 0 && len(m.Cookies) == 0 && len(m.Query) == 0 && len(m.Sources) == 0
}

// holds reports whether a value is the wanted one. Patterns cover the whole of it since
// compilation.
func (v *Value) holds(value string, present bool) bool {
	switch {
	case !present:
		return false
	case v.Pattern != nil:
		return v.Pattern.MatchString(value)
	}
	return v.Present || value == v.Exact
}

// IsGRPC reports whether the headers are those of a gRPC request.
func IsGRPC(h http.Header) bool {
	kind := h["Content-Type"]
	return len(kind) > 0 && strings.HasPrefix(kind[0], "application/grpc")
}

// headerValue is the value of a header, of which several lines are one list.
func headerValue(h http.Header, name string) (string, bool) {
	values := h[name] // names are canonical since compilation
	if len(values) == 1 {
		return values[0], true
	}
	return strings.Join(values, ","), len(values) > 0
}

// CookieValue is the first cookie of that name in a request's headers.
func CookieValue(h http.Header, name string) (string, bool) {
	for _, line := range h["Cookie"] {
		for line != "" {
			var pair string
			pair, line, _ = strings.Cut(line, ";")
			pair = strings.Trim(pair, " \t")
			if key, value, ok := strings.Cut(pair, "="); ok && key == name {
				if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
					value = value[1 : len(value)-1]
				}
				return value, true
			}
		}
	}
	return "", false
}

// QueryValue is the first parameter of that name in a query.
func QueryValue(query, name string) (string, bool) {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		key, value, _ := strings.Cut(pair, "=")
		if decoded(key) == name && pair != "" {
			return decoded(value), true
		}
	}
	return "", false
}

// decoded is a part of a query in plain; as it is if it is badly encoded.
func decoded(s string) string {
	if !strings.ContainsAny(s, "%+") {
		return s
	}
	if plain, err := url.QueryUnescape(s); err == nil {
		return plain
	}
	return s
}
