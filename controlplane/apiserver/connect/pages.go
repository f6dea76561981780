package connect

import (
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	proxyutil "k8s.io/apimachinery/pkg/util/proxy"

	"knarr/controlplane/apiserver/egress"
	"knarr/internal/run"
)

const (
	// maxPage bounds a page of a backend's whose links are rewritten, for which it
	// is held whole, by what it is once it is unpacked.
	maxPage = 4 << 20
	// maxPages bounds the pages that are rewritten at once, and pageTime how long
	// the backend may take to send one.
	maxPages = 16
	pageTime = 30 * time.Second
)

// pages is the transport to one backend, whose pages have their links rewritten
// to lead through the proxy. What a backend sends is bounded before it is parsed.
type pages struct {
	backend http.RoundTripper
	prefix  string
	places  chan struct{} // taken by pages while they are rewritten
}

func (p *pages) RoundTrip(r *http.Request) (*http.Response, error) {
	one := &page{pages: p}
	defer one.end()
	resp, err := (&proxyutil.Transport{PathPrepend: p.prefix, RoundTripper: one}).RoundTrip(r)
	if errors.Is(one.err, egress.ErrRefused) {
		return nil, one.err // which is no failure of the backend
	}
	return resp, err
}

// A page is one answer of a backend, bounded if it is a page.
type page struct {
	*pages
	err  error
	ends []func()
}

func (p *page) end() {
	for _, f := range p.ends {
		f()
	}
}

func (p *page) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := p.backend.RoundTrip(r)
	if p.err = err; err != nil {
		return nil, err
	}
	if resp.Header.Get("Location") != "" || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		return resp, nil
	}
	select {
	case p.places <- struct{}{}:
		p.ends = append(p.ends, func() { <-p.places })
	case <-r.Context().Done():
		resp.Body.Close()
		return nil, r.Context().Err()
	}
	body := resp.Body
	late := run.AfterFunc("page of a backend", pageTime, func() { body.Close() })
	p.ends = append(p.ends, func() { late.Stop() })
	if err := unpack(resp); err != nil {
		body.Close()
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("error trying to reach service: %v", err))
	}
	return resp, nil
}

// unpack makes an answer's body plain, and bounds it: the library that rewrites
// pages unpacks them without an end.
func unpack(resp *http.Response) error {
	var plain io.ReadCloser
	switch resp.Header.Get("Content-Encoding") {
	case "gzip":
		z, err := gzip.NewReader(resp.Body)
		if err != nil {
			return err
		}
		plain = z
	case "deflate":
		plain = flate.NewReader(resp.Body)
	case "":
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxPage)
		return nil
	default: // which passes as it is
		return nil
	}
	resp.Header.Del("Content-Encoding")
	resp.Header.Del("Content-Length")
	resp.ContentLength = -1
	resp.Body = both{http.MaxBytesReader(nil, plain, maxPage), resp.Body}
	return nil
}

// both closes what it reads and what that is read from.
type both struct {
	io.ReadCloser
	under io.Closer
}

func (b both) Close() error { return errors.Join(b.ReadCloser.Close(), b.under.Close()) }
