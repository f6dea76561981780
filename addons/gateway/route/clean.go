package route

import (
	"net/netip"
	"strings"
)

// Classes of bytes in paths: those that stand for themselves whether they are encoded
// or not, those that mean something else when they are encoded, and those that
// must be encoded. The rest (control characters) is refused.
const (
	refused = iota
	unreserved
	reserved
	encoded
)

var pathClass = func() (c [256]uint8) {
	for b := 0x21; b < 256; b++ {
		c[b] = encoded
	}
	c[0x7f] = refused
	for _, b := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~") {
		c[b] = unreserved
	}
	for _, b := range []byte("!$&'()*+,;=:@/") {
		c[b] = reserved
	}
	return c
}()

// CleanPath gives a path, as it stands in a request, the one form that is both matched
// and sent to backends: unreserved characters are not percent-encoded and what must be
// is, in capitals; there are neither dot segments nor empty ones. An encoded slash is no
// slash. Paths with control characters or broken encodings are refused.
func CleanPath(raw string) (path string, ok bool) {
	if raw == "" || raw[0] != '/' {
		return "", false
	}
	if isClean(raw) {
		return raw, true
	}
	buf := make([]byte, 0, len(raw)+16)
	for i := 0; i < len(raw); i++ {
		b := raw[i]
		if b != '%' {
			switch pathClass[b] {
			case refused:
				return "", false
			case encoded:
				buf = appendEncoded(buf, b)
			default:
				buf = append(buf, b)
			}
			continue
		}
		if i+2 >= len(raw) {
			return "", false
		}
		high, low := unhex(raw[i+1]), unhex(raw[i+2])
		if high > 15 || low > 15 {
			return "", false
		}
		i += 2
		switch b = high<<4 | low; {
		case b == 0:
			return "", false
		case pathClass[b] == unreserved:
			buf = append(buf, b)
		default:
			buf = appendEncoded(buf, b)
		}
	}
	return string(resolveSegments(buf)), true
}

// isClean reports whether CleanPath would change nothing.
func isClean(path string) bool {
	for i := 0; i < len(path); i++ {
		switch b := path[i]; {
		case b == '/':
			if i+1 == len(path) {
				return true
			}
			switch path[i+1] {
			case '/':
				return false
			case '.':
				rest := path[i+2:]
				if rest == "" || rest[0] == '/' || rest[0] == '.' && (len(rest) == 1 || rest[1] == '/') {
					return false
				}
			}
		case b == '%':
			if i+2 >= len(path) || !isCapitalHex(path[i+1]) || !isCapitalHex(path[i+2]) {
				return false
			}
			if b = unhex(path[i+1])<<4 | unhex(path[i+2]); b == 0 || pathClass[b] == unreserved {
				return false
			}
		case pathClass[b] != unreserved && pathClass[b] != reserved:
			return false
		}
	}
	return true
}

// resolveSegments drops empty segments, "." and what ".." takes back, in place.
func resolveSegments(path []byte) []byte {
	out := path[:0]
	for i := 0; i < len(path); {
		i++ // the slash
		end := i
		for end < len(path) && path[end] != '/' {
			end++
		}
		segment, last := path[i:end], end == len(path)
		switch {
		case len(segment) == 0 || len(segment) == 1 && segment[0] == '.':
			if last {
				out = append(out, '/')
			}
		case len(segment) == 2 && segment[0] == '.' && segment[1] == '.':
			for len(out) > 0 && out[len(out)-1] != '/' {
				out = out[:len(out)-1]
			}
			if len(out) > 0 {
				out = out[:len(out)-1]
			}
			if last {
				out = append(out, '/')
			}
		default:
			out = append(append(out, '/'), segment...)
		}
		i = end
	}
	return out
}

func appendEncoded(buf []byte, b byte) []byte {
	const hex = "0123456789ABCDEF"
	return append(buf, '%', hex[b>>4], hex[b&15])
}

func isCapitalHex(b byte) bool { return '0' <= b && b <= '9' || 'A' <= b && b <= 'F' }

func unhex(b byte) byte {
	switch {
	case '0' <= b && b <= '9':
		return b - '0'
	case 'a' <= b && b <= 'f':
		return b - 'a' + 10
	case 'A' <= b && b <= 'F':
		return b - 'A' + 10
	}
	return 255
}

// EncodePath is CleanPath for a path of a configuration, in which a percent sign that
// begins no encoding means itself.
func EncodePath(path string) string {
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	if clean, ok := CleanPath(path); ok {
		return clean
	}
	var b []byte
	for i := 0; i < len(path); i++ {
		if c := pathClass[path[i]]; c == unreserved || c == reserved {
			b = append(b, path[i])
		} else {
			b = appendEncoded(b, path[i])
		}
	}
	return string(resolveSegments(b))
}

// maxHost is the most that a host name may have, with its port.
const maxHost = 255 + len(":65535")

// CleanHost gives what a request calls the host the form that is matched: in lower case,
// without port and final dot. An IPv6 address loses its brackets. An empty host is one.
func CleanHost(raw string) (host string, ok bool) {
	if len(raw) > maxHost {
		return "", false
	}
	host = raw
	if strings.HasPrefix(host, "[") {
		address, rest, found := strings.Cut(host[1:], "]")
		if !found || rest != "" && (rest[0] != ':' || !isPort(rest[1:])) {
			return "", false
		}
		if a, err := netip.ParseAddr(address); err != nil || !a.Is6() || a.Zone() != "" {
			return "", false
		}
		return strings.ToLower(address), true
	}
	upper := false
	for i := 0; i < len(host); i++ {
		switch b := host[i]; {
		case 'a' <= b && b <= 'z' || '0' <= b && b <= '9' || b == '-' || b == '_':
		case 'A' <= b && b <= 'Z':
			upper = true
		case b == '.':
			if i == 0 || host[i-1] == '.' {
				return "", false
			}
		case b == ':':
			if !isPort(host[i+1:]) {
				return "", false
			}
			host = host[:i]
		default:
			return "", false
		}
	}
	host = strings.TrimSuffix(host, ".")
	if upper {
		host = strings.ToLower(host)
	}
	return host, host != "" || raw == ""
}

// isPort reports whether s may follow a host's colon; it may be empty.
func isPort(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) <= 5
}
