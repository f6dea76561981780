package http3

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/quic-go/qpack"
)

// appendHeaders is a frame of fields, each a name and a value.
func appendHeaders(fields ...string) []byte {
	block := appendBlock(fields...)
	return append(appendHead(nil, frameHeaders, len(block)), block...)
}

func appendBlock(fields ...string) []byte {
	var b bytes.Buffer
	e := qpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(qpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}

func TestRequestsThatAreNone(t *testing.T) {
	good := []string{":method", "GET", ":scheme", "https", ":authority", "a.test", ":path", "/"}
	with := func(more ...string) []string { return append(append([]string{}, good...), more...) }
	for name, fields := range map[string][]string{
		"no method":                     good[2:],
		"no path":                       good[:6],
		"no authority":                  {":method", "GET", ":scheme", "https", ":path", "/"},
		"a path of another form":        {":method", "GET", ":scheme", "https", ":authority", "a.test", ":path", "http://b.test/"},
		"another scheme":                {":method", "GET", ":scheme", "ftp", ":authority", "a.test", ":path", "/"},
		"a pseudo field twice":          with(":path", "/b"),
		"a pseudo field of an answer":   with(":status", "200"),
		"an unknown pseudo field":       with(":protocol", "websocket"),
		"a pseudo field after others":   {":method", "GET", ":scheme", "https", ":authority", "a.test", "x-a", "1", ":path", "/"},
		"a pseudo field after a cookie": {":method", "GET", ":scheme", "https", ":authority", "a.test", "cookie", "1", ":path", "/"},
		"capital letters":               with("X-A", "1"),
		"a space in a name":             with("x a", "1"),
		"a colon in a name":             with("x:a", "1"),
		"an end of a line":              with("x-a", "1\r\nx-b: 2"),
		"connection":                    with("connection", "close"),
		"transfer-encoding":             with("transfer-encoding", "chunked"),
		"upgrade":                       with("upgrade", "websocket"),
		"te":                            with("te", "gzip"),
		"another host":                  with("host", "b.test"),
		"two hosts":                     with("host", "a.test", "host", "a.test"),
		"two lengths":                   with("content-length", "1", "content-length", "1"),
		"two lengths in one":            with("content-length", "1, 1"),
		"a length with a sign":          with("content-length", "+1"),
		"a length below zero":           with("content-length", "-1"),
		"a length beyond all":           with("content-length", "99999999999999999999"),
		"CONNECT with a path":           {":method", "CONNECT", ":scheme", "https", ":authority", "a.test", ":path", "/"},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := decode(appendBlock(fields...), maxHead)
			if err == nil {
				_, err = h.request()
			}
			if !errors.Is(err, errMalformed) {
				t.Errorf("got %v", err)
			}
		})
	}
	h, err := decode(appendBlock(with("cookie", "a=1", "cookie", "b=2", "x_real_ip", "1.2.3.4", "content-length", "3", "trailer", "x-sum, content-length")...), maxHead)
	if err != nil {
		t.Fatal(err)
	}
	r, err := h.request()
	if err != nil || r.Header.Get("Cookie") != "a=1; b=2" || r.ContentLength != 3 || len(r.Trailer) != 1 || r.Host != "a.test" {
		t.Errorf("%+v, %v", r, err)
	}
	for name := range r.Header {
		if strings.Contains(name, "_") {
			t.Errorf("the field %s was kept", name)
		}
	}
}

func FuzzFields(f *testing.F) {
	f.Add(appendBlock(":method", "GET", ":scheme", "https", ":authority", "a.test", ":path", "/", "cookie", "a", "x-b", "c"))
	f.Add([]byte{0, 0, 0x50, 0x83, 1, 2, 3})
	f.Fuzz(func(t *testing.T, block []byte) {
		h, err := decode(block, maxHead)
		if err != nil {
			return
		}
		r, err := h.request()
		if err != nil {
			return
		}
		if r.Host == "" || r.Method == "" || len(r.Header) > maxFields {
			t.Errorf("%+v", r)
		}
		for name, values := range r.Header {
			for _, v := range values {
				if strings.ContainsAny(name+v, "\r\n\x00") || strings.Contains(name, "_") || http.CanonicalHeaderKey(name) != name {
					t.Errorf("%q: %q", name, v)
				}
			}
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{frameHeaders, 1, 0, 0x21, 2, 1, 2, frameData, 3, 1, 2, 3})
	f.Add([]byte{controlStream, frameSettings, 2, 6, 1, frameGoAway, 1, 0})
	f.Fuzz(func(t *testing.T, stream []byte) {
		requests := &frames{r: bytes.NewReader(stream)}
		for range 1 + len(stream) {
			kind, size, err := requests.ofRequest()
			if err != nil {
				break
			}
			if kind != frameData && kind != frameHeaders {
				t.Fatalf("a frame of type %d", kind)
			}
			if _, err := io.CopyN(io.Discard, requests.r, int64(min(size, 1<<20))); err != nil {
				break
			}
		}
		if requests.skipped > maxSkipped {
			t.Errorf("%d bytes were skipped", requests.skipped)
		}
		if why := (&frames{r: bytes.NewReader(stream)}).control(); why == noError {
			t.Error("a control stream that ended is no error")
		}
		tables(bytes.NewReader(stream), encoderStream)
	})
}
