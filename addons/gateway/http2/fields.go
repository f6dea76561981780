package http2

import (
	"knarr/addons/gateway/answer"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
)

// Header blocks are written without a table of what was written before: they can be made
// before it is known when they leave, and cost less time than they cost bytes.

// staticNames are the places of names in HPACK's static table.
var staticNames = map[string]byte{
	"Accept-Ranges": 18, "Access-Control-Allow-Origin": 20, "Age": 21, "Allow": 22, "Cache-Control": 24, "Content-Disposition": 25, "Content-Encoding": 26,
	"Content-Language": 27, "Content-Length": 28, "Content-Location": 29, "Content-Range": 30, "Content-Type": 31, "Date": 33, "Etag": 34, "Expires": 36,
	"Last-Modified": 44, "Link": 45, "Location": 46, "Proxy-Authenticate": 48, "Refresh": 52, "Retry-After": 53, "Server": 54, "Set-Cookie": 55,
	"Strict-Transport-Security": 56, "Vary": 59, "Via": 60, "Www-Authenticate": 61,
}

// appendInt appends a number whose first byte has so many bits for it.
func appendInt(b []byte, first byte, bits uint, n int) []byte {
	most := 1<<bits - 1
	if n < most {
		return append(b, first|byte(n))
	}
	b = append(b, first|byte(most))
	for n -= most; n >= 128; n >>= 7 {
		b = append(b, byte(n)|128)
	}
	return append(b, byte(n))
}

func appendStatus(b []byte, status int) []byte {
	switch status {
	case 200:
		return append(b, 0x80|8)
	case 204:
		return append(b, 0x80|9)
	case 206:
		return append(b, 0x80|10)
	case 304:
		return append(b, 0x80|11)
	case 400:
		return append(b, 0x80|12)
	case 404:
		return append(b, 0x80|13)
	case 500:
		return append(b, 0x80|14)
	}
	return strconv.AppendInt(append(b, 8, 3), int64(status), 10)
}

// appendFields appends an answer's fields but those that belong to HTTP/1.1's connections
// and those of the trailer.
func appendFields(b []byte, h http.Header) []byte {
	for name, value := range answer.Fields(h) {
		b = appendField(b, name, value)
	}
	return b
}

// appendField appends a field, unless it is none: its name no token, or an end of a line
// in its value.
func appendField(b []byte, name, value string) []byte {
	if strings.ContainsAny(value, "\r\n\x00") {
		return b
	}
	if place, ok := staticNames[name]; ok {
		b = appendInt(b, 0, 4, int(place))
	} else {
		for i := 0; i < len(name); i++ {
			if name[i] <= ' ' || name[i] >= 0x7f || name[i] == ':' {
				return b
			}
		}
		if name == "" {
			return b
		}
		b = appendInt(append(b, 0), 0, 7, len(name))
		for i := 0; i < len(name); i++ {
			c := name[i]
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			b = append(b, c)
		}
	}
	b = appendInt(b, 0, 7, len(value))
	return append(b, value...)
}

// canonicalNames remembers the forms of names that clients send. It is bounded: others
// are made each time.
var canonicalNames struct {
	sync.Map
	left sync.Mutex
	n    int
}

const maxCanonicalNames = 1000

// canonical is a name as in http.Header.
func canonical(name string) string {
	if known, ok := canonicalNames.Load(name); ok {
		return known.(string)
	}
	made := textproto.CanonicalMIMEHeaderKey(name)
	canonicalNames.left.Lock()
	defer canonicalNames.left.Unlock()
	if canonicalNames.n < maxCanonicalNames && len(name) < 64 {
		canonicalNames.n++
		canonicalNames.Store(strings.Clone(name), made)
	}
	return made
}
