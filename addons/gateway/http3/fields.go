package http3

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/quic-go/qpack"
	"golang.org/x/net/http/httpguts"
)

var (
	errTooLarge  = errors.New("the fields are too many")
	errMalformed = errors.New("malformed fields")
)

// pseudo are the fields that say what is asked of whom.
type pseudo struct{ method, scheme, authority, path string }

// A head is what a frame of fields says.
type head struct {
	pseudo  pseudo
	header  http.Header
	cookies []string
	regular bool // a field that is none of pseudo was there: those come first
}

// decode reads a block of fields that has at most so many bytes when it is unpacked.
func decode(block []byte, most int) (*head, error) {
	h := &head{header: http.Header{}}
	next := qpack.NewDecoder().Decode(block)
	for n := 0; ; n++ {
		field, err := next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if most -= len(field.Name) + len(field.Value) + 32; most < 0 || n >= maxFields {
			return nil, errTooLarge
		}
		if err := h.add(field.Name, field.Value); err != nil {
			return nil, err
		}
	}
	if len(h.cookies) > 0 { // clients split it to compress it
		h.header["Cookie"] = []string{strings.Join(h.cookies, "; ")}
	}
	return h, nil
}

func (h *head) add(name, value string) error {
	if !httpguts.ValidHeaderFieldValue(value) {
		return errMalformed
	}
	if rest, ok := strings.CutPrefix(name, ":"); ok {
		return h.addPseudo(rest, value)
	}
	if h.regular = true; !validName(name) {
		return errMalformed
	}
	if strings.IndexByte(name, '_') >= 0 {
		return nil // many a backend takes it for another name, of which the gateway says the value
	}
	switch name = http.CanonicalHeaderKey(name); name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
		return errMalformed
	case "Te":
		if value != "trailers" {
			return errMalformed
		}
	case "Cookie":
		h.cookies = append(h.cookies, value)
		return nil
	}
	h.header[name] = append(h.header[name], value)
	return nil
}

func (h *head) addPseudo(name, value string) error {
	of := map[string]*string{"method": &h.pseudo.method, "scheme": &h.pseudo.scheme, "authority": &h.pseudo.authority, "path": &h.pseudo.path}[name]
	if of == nil || *of != "" || value == "" || h.regular {
		return errMalformed
	}
	*of = value
	return nil
}

// validName says whether a name is a token without capital letters.
func validName(name string) bool {
	for i := 0; i < len(name); i++ {
		if b := name[i]; 'A' <= b && b <= 'Z' || !httpguts.IsTokenRune(rune(b)) {
			return false
		}
	}
	return name != ""
}

// notInTrailers are fields that mean something only before the body.
var notInTrailers = map[string]bool{"Content-Length": true, "Transfer-Encoding": true, "Host": true, "Connection": true, "Trailer": true, "Te": true, "Upgrade": true,
	"Content-Encoding": true, "Content-Type": true, "Content-Range": true, "Authorization": true, "Cookie": true, "Set-Cookie": true, "Expect": true, "Cache-Control": true}

const maxTrailers = 32

// request is what a head asks for, without its body.
func (h *head) request() (*http.Request, error) {
	p := h.pseudo
	hosts := h.header["Host"]
	switch {
	case len(hosts) > 1 || len(hosts) == 1 && p.authority != "" && !strings.EqualFold(hosts[0], p.authority):
		return nil, errMalformed
	case p.authority == "" && len(hosts) == 1:
		p.authority = hosts[0]
	}
	delete(h.header, "Host")
	switch {
	case p.method == http.MethodConnect:
		if p.path != "" || p.scheme != "" || p.authority == "" {
			return nil, errMalformed
		}
	case p.method == "" || p.authority == "" || p.scheme != "http" && p.scheme != "https" || p.path == "" || p.path[0] != '/' && (p.path != "*" || p.method != http.MethodOptions):
		return nil, errMalformed
	}
	r := &http.Request{Method: p.method, Proto: "HTTP/3.0", ProtoMajor: 3, Header: h.header, Body: http.NoBody, ContentLength: -1, Host: p.authority, RequestURI: p.path, URL: &url.URL{}}
	r.URL.Path, r.URL.RawQuery, _ = strings.Cut(p.path, "?")
	if lengths := h.header["Content-Length"]; len(lengths) > 0 {
		n, err := strconv.ParseUint(lengths[0], 10, 62)
		if err != nil || len(lengths) > 1 {
			return nil, errMalformed
		}
		r.ContentLength = int64(n)
	}
	for _, list := range h.header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); name != "" && !notInTrailers[name] && len(r.Trailer) < maxTrailers {
				if r.Trailer == nil {
					r.Trailer = http.Header{}
				}
				r.Trailer[name] = nil
			}
		}
	}
	return r, nil
}

// expects says whether a client waits for 100 before it sends its body.
func expects(h http.Header) bool {
	return len(h["Expect"]) == 1 && strings.EqualFold(h["Expect"][0], "100-continue")
}
