package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"knarr/internal/run"
)

const (
	// peerWindow is how long another node may take to give peerLeast bytes more of an answer,
	// or its end. Both are far below what any link between nodes does.
	peerWindow = 30 * time.Second
	peerLeast  = 256 << 10
)

var errPeerSlow = fmt.Errorf("it has not given %d bytes in %v", peerLeast, peerWindow)

// boundedPeers is a client whose other side may be anybody's that has taken over a node: what
// it answers has an end, in bytes and in time, before it gets to a disk or is computed with.
// A layer has the size that its manifest says, which containerd keeps to.
func boundedPeers(client *http.Client) *http.Client {
	next := client.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	own := *client
	own.Transport = peerTransport{next}
	return &own
}

type peerTransport struct{ next http.RoundTripper }

func (t peerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	late := run.AfterFunc("answer of another node", peerWindow, func() { cancel(errPeerSlow) })
	res, err := t.next.RoundTrip(r.WithContext(ctx))
	if err == nil {
		most := int64(math.MaxInt64)
		if strings.Contains(r.URL.Path, "/manifests/") {
			most = maxManifest
		}
		if err = checkPeerAnswer(res, most); err == nil {
			res.Body = &peerBody{ReadCloser: res.Body, ctx: ctx, cancel: cancel, late: late, left: most}
			return res, nil
		}
		res.Body.Close()
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	late.Stop()
	cancel(nil)
	return nil, fmt.Errorf("node %s: %w", r.URL.Host, err)
}

// checkPeerAnswer refuses answers that no node gives: it sends nobody elsewhere, where this
// node's certificate would be shown, and packs nothing. Pure.
func checkPeerAnswer(res *http.Response, most int64) error {
	switch packed := res.Header.Get("Content-Encoding"); {
	case res.StatusCode/100 == 3:
		return fmt.Errorf("it answers %s", res.Status)
	case packed != "":
		return fmt.Errorf("it answers in encoding %q", packed)
	case res.ContentLength > most:
		return fmt.Errorf("its manifest of %d bytes is larger than %d bytes", res.ContentLength, most)
	}
	return nil
}

// A peerBody is an answer that ends.
type peerBody struct {
	io.ReadCloser
	ctx    context.Context // of the request
	cancel context.CancelCauseFunc
	late   *time.Timer
	left   int64 // bytes that it may still have
	given  int64 // bytes, in this window
}

func (b *peerBody) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("manifest of another node is larger than %d bytes", maxManifest)
	}
	if b.given += int64(n); b.given >= peerLeast {
		b.given = 0
		b.late.Reset(peerWindow)
	}
	if cause := context.Cause(b.ctx); err != nil && !errors.Is(err, io.EOF) && cause != nil {
		err = fmt.Errorf("answer of another node: %w", cause)
	}
	return n, err
}

func (b *peerBody) Close() error {
	b.late.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}
