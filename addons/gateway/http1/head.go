// Package http1 speaks HTTP/1.1 at both sides of a proxy: a server that calls a handler
// for each request of a connection, and a pool of connections to one backend. It is strict
// where two readings of a message would let one request hide in another. It reads and
// writes connections.
package http1

import (
	"errors"
	"net/http"
	"net/textproto"
	"strings"
)

// Limits of heads.
const (
	maxHead    = 64 << 10
	maxFields  = 256
	maxTrailer = 16 << 10
)

var (
	errHead     = errors.New("malformed head")
	errHeadSize = errors.New("the head is too long")
	errFraming  = errors.New("the length of the body is ambiguous")
	errCoding   = errors.New("a transfer coding that is not known")
	errVersion  = errors.New("a version of HTTP that is not known")
)

// headEnd looks for the empty line that ends a head, from a line's begin on. It returns
// what follows that line, or where the next search begins. Lines end with CR LF only.
func headEnd(b []byte, from int) (end, next int, err error) {
	for {
		i := indexByte(b[from:], '\n')
		if i < 0 {
			return 0, from, nil
		}
		if i == 0 || b[from+i-1] != '\r' {
			return 0, from, errHead
		}
		from += i + 1
		if i == 1 {
			return from, from, nil
		}
	}
}

// tokenByte says which bytes names and methods consist of, fieldByte those of values.
var tokenByte, fieldByte = func() (token, field [256]bool) {
	for b := range 256 {
		field[b] = b >= 0x20 && b != 0x7f || b == '\t'
	}
	for _, b := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		token[b] = true
	}
	return token, field
}()

// A fieldSet is the fields of a head. Its map and the arrays behind it are used again.
type fieldSet struct {
	header http.Header
	values []string
	// noUnderscores leaves out names with an underscore, which many a backend takes for
	// a hyphen: X_Real_Ip would be what the gateway says by X-Real-Ip.
	noUnderscores bool
}

func (f *fieldSet) reset() {
	if f.header == nil {
		f.header = make(http.Header, 16)
	}
	clear(f.header)
	f.values = f.values[:0]
}

// parse reads lines, each with its end.
func (f *fieldSet) parse(lines string) error {
	for n := 0; lines != ""; n++ {
		end := strings.IndexByte(lines, '\n')
		if n == maxFields {
			return errHeadSize
		}
		line := lines[:end-1]
		lines = lines[end+1:]
		colon := 0
		for colon < len(line) && tokenByte[line[colon]] {
			colon++
		}
		// Neither spaces before the colon nor lines that go on are taken: who takes them reads
		// another message.
		if colon == 0 || colon == len(line) || line[colon] != ':' {
			return errHead
		}
		value := line[colon+1:]
		for len(value) > 0 && (value[0] == ' ' || value[0] == '\t') {
			value = value[1:]
		}
		for len(value) > 0 && (value[len(value)-1] == ' ' || value[len(value)-1] == '\t') {
			value = value[:len(value)-1]
		}
		for i := 0; i < len(value); i++ {
			if !fieldByte[value[i]] {
				return errHead
			}
		}
		if name := line[:colon]; !f.noUnderscores || strings.IndexByte(name, '_') < 0 {
			f.add(canonicalName(name), value)
		}
	}
	return nil
}

func (f *fieldSet) add(name, value string) {
	if old, ok := f.header[name]; ok {
		f.header[name] = append(old, value)
		return
	}
	n := len(f.values)
	f.values = append(f.values, value)
	f.header[name] = f.values[n : n+1 : n+1]
}

// canonicalName is a name as in http.Header, of which most arrive so.
func canonicalName(name string) string {
	upper := true
	for i := 0; i < len(name); i++ {
		b := name[i]
		if upper && 'a' <= b && b <= 'z' || !upper && 'A' <= b && b <= 'Z' {
			return textproto.CanonicalMIMEHeaderKey(name)
		}
		upper = b == '-'
	}
	return name
}

// unknownLength is of a body whose end its coding or the connection shows.
const unknownLength = -1

// framing is the length that a head gives its body: known, chunked, or neither, which
// says that the fields are silent. A head that says two things is refused.
func framing(h http.Header, http10 bool) (length int64, chunked bool, err error) {
	lengths, codings := h["Content-Length"], h["Transfer-Encoding"]
	switch {
	case len(codings) > 0 && (len(lengths) > 0 || http10):
		return 0, false, errFraming
	case len(codings) > 1:
		return 0, false, errFraming
	case len(codings) == 1:
		if !strings.EqualFold(codings[0], "chunked") {
			return 0, false, errCoding
		}
		return unknownLength, true, nil
	case len(lengths) > 1:
		return 0, false, errFraming
	case len(lengths) == 1:
		length, ok := parseLength(lengths[0])
		if !ok {
			return 0, false, errFraming
		}
		return length, false, nil
	}
	return unknownLength, false, nil
}

// parseLength takes digits only, no sign and no list.
func parseLength(s string) (n int64, ok bool) {
	if s == "" || len(s) > 18 {
		return 0, false
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, true
}

// A requestLine is the first line of a request.
type requestLine struct {
	method, target string
	http10         bool
}

func parseRequestLine(line string) (r requestLine, err error) {
	i := 0
	for i < len(line) && tokenByte[line[i]] {
		i++
	}
	if i == 0 || i == len(line) || line[i] != ' ' {
		return r, errHead
	}
	r.method, line = line[:i], line[i+1:]
	i = 0
	for i < len(line) && line[i] > ' ' && line[i] != 0x7f {
		i++
	}
	if i == 0 || i == len(line) || line[i] != ' ' {
		return r, errHead
	}
	r.target, line = line[:i], line[i+1:]
	switch line {
	case "HTTP/1.1":
	case "HTTP/1.0":
		r.http10 = true
	default:
		if len(line) == 8 && strings.HasPrefix(line, "HTTP/") && line[6] == '.' && isDigit(line[5]) && isDigit(line[7]) {
			return r, errVersion
		}
		return r, errHead
	}
	return r, nil
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// parseStatusLine is the status of an answer.
func parseStatusLine(line string) (status int, http10 bool, err error) {
	if len(line) < 12 || !strings.HasPrefix(line, "HTTP/1.") || !isDigit(line[7]) || line[8] != ' ' {
		return 0, false, errHead
	}
	for _, b := range []byte(line[9:12]) {
		if !isDigit(b) {
			return 0, false, errHead
		}
		status = status*10 + int(b-'0')
	}
	if status < 100 || len(line) > 12 && line[12] != ' ' {
		return 0, false, errHead
	}
	for i := 12; i < len(line); i++ {
		if !fieldByte[line[i]] {
			return 0, false, errHead
		}
	}
	return status, line[7] == '0', nil
}

// hasToken reports whether a list of a header has a token.
func hasToken(values []string, token string) bool {
	for _, list := range values {
		for list != "" {
			var item string
			item, list, _ = strings.Cut(list, ",")
			if strings.EqualFold(strings.TrimSpace(item), token) {
				return true
			}
		}
	}
	return false
}
