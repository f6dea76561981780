package connect

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestPageIsBounded: a page is as long as it may be once it is unpacked: a few kB
// of a pod's would be gigabytes of the API server's.
func TestPageIsBounded(t *testing.T) {
	pack := func(encoding, text string) []byte {
		var b bytes.Buffer
		var w io.WriteCloser = gzip.NewWriter(&b)
		if encoding == "deflate" {
			w, _ = flate.NewWriter(&b, 9)
		}
		_, _ = io.WriteString(w, text)
		_ = w.Close()
		return b.Bytes()
	}
	bomb, page := strings.Repeat("a", maxPage+1), `<a href="/other">x</a>`
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		text := page
		if strings.HasPrefix(r.URL.Path, "/bomb") {
			text = bomb
		}
		encoding := r.URL.Query().Get("encoding")
		if encoding == "" {
			_, _ = io.WriteString(w, text)
			return
		}
		w.Header().Set("Content-Encoding", encoding)
		_, _ = w.Write(pack(encoding, text))
	}))
	t.Cleanup(backend.Close)
	w := newWorld(t, Config{Proxy: roundTrip(func(r *http.Request) (*http.Response, error) {
		r.URL.Host = strings.TrimPrefix(backend.URL, "http://")
		return http.DefaultTransport.RoundTrip(r)
	})})
	const path = "/api/v1/namespaces/default/pods/p/proxy"
	for _, encoding := range []string{"", "gzip", "deflate"} {
		code, body, header := w.do("GET", path+"/page?encoding="+encoding, "Accept-Encoding", "identity")
		if want := `<a href="` + path + `/other">x</a>`; code != http.StatusOK || body != want || header.Get("Content-Encoding") != "" {
			t.Errorf("%q: %d %s %v", encoding, code, body, header)
		}
		code, body, _ = w.do("GET", path+"/bomb?encoding="+encoding, "Accept-Encoding", "identity")
		if code != http.StatusServiceUnavailable || len(body) > 1000 {
			t.Errorf("%q: a bomb: %d and %d bytes", encoding, code, len(body))
		}
	}
	if n := len(w.server.places); n > 0 {
		t.Errorf("%d places of pages are taken", n)
	}
}
