package containerruntime

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A fakePeer answers what a test wants; its bodies give size bytes in pieces, each after a
// pause. One of size -1 does not end before enough shows that nobody ends it.
type fakePeer struct {
	status  int
	header  http.Header
	length  int64         // as it says
	silence time.Duration // before it answers
	size    int64
	piece   int
	pause   time.Duration
	given   int64
	ctx     context.Context
}

func (f *fakePeer) RoundTrip(r *http.Request) (*http.Response, error) {
	f.ctx = r.Context()
	if err := f.wait(f.silence); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: f.status, Status: http.StatusText(f.status), Header: f.header, ContentLength: f.length, Body: f, Request: r}, nil
}

func (f *fakePeer) wait(d time.Duration) error {
	select {
	case <-f.ctx.Done():
		return f.ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (f *fakePeer) Read(p []byte) (int, error) {
	const enough = 64 << 20
	if f.size >= 0 && f.given >= f.size || f.given >= enough && f.size < 0 {
		return 0, io.EOF
	}
	if err := f.wait(f.pause); err != nil {
		return 0, err
	}
	n := min(len(p), f.piece)
	f.given += int64(n)
	return n, nil
}

func (f *fakePeer) Close() error { return nil }

// TestPeerAnswersAreBounded: another node's answers end, whatever it sends.
func TestPeerAnswersAreBounded(t *testing.T) {
	const manifest, blob = "https://peer/v2/app/manifests/v1", "https://peer/v2/app/blobs/sha256:0"
	header := func(name, value string) http.Header { return http.Header{name: {value}} }
	for name, c := range map[string]struct {
		url  string
		peer fakePeer
		want string        // in the error, "" for none
		most int64         // bytes that are taken
		in   time.Duration // at most
	}{
		"a manifest":                     {manifest, fakePeer{length: 1000, size: 1000, piece: 100}, "", 1000, 0},
		"a manifest without a length":    {manifest, fakePeer{length: -1, size: maxManifest, piece: 4096}, "", maxManifest, 0},
		"a large manifest":               {manifest, fakePeer{length: maxManifest + 1, size: maxManifest + 1, piece: 4096}, "larger than 4194304 bytes", 0, 0},
		"a manifest without end":         {manifest, fakePeer{length: -1, size: -1, piece: 4096}, "larger than 4194304 bytes", maxManifest + 4096, 0},
		"a manifest larger than it says": {manifest, fakePeer{length: 100, size: -1, piece: 4096}, "larger than 4194304 bytes", maxManifest + 4096, 0},
		"a large layer":                  {blob, fakePeer{length: 100 << 20, size: 100 << 20, piece: 32 << 10}, "", 100 << 20, 0},
		"a layer over a slow link":       {blob, fakePeer{length: -1, size: 4 << 20, piece: 8 << 10, pause: time.Second / 2}, "", 4 << 20, 256 * time.Second},
		"a layer in drops":               {blob, fakePeer{length: -1, size: -1, piece: 1, pause: time.Second}, "it has not given 262144 bytes in 30s", 30, peerWindow},
		"a layer that stops":             {blob, fakePeer{length: 1000, size: 1000, piece: 500, pause: time.Hour}, "it has not given 262144 bytes in 30s", 0, peerWindow},
		"no answer":                      {blob, fakePeer{silence: time.Hour}, "it has not given 262144 bytes in 30s", 0, peerWindow},
		"another place":                  {blob, fakePeer{status: http.StatusTemporaryRedirect, header: header("Location", "https://elsewhere/")}, "it answers Temporary Redirect", 0, 0},
		"a packed layer":                 {blob, fakePeer{header: header("Content-Encoding", "zstd")}, `in encoding "zstd"`, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				peer, began := c.peer, time.Now()
				if peer.status == 0 {
					peer.status = http.StatusOK
				}
				ctx, cancel := context.WithTimeout(t.Context(), peerTime)
				defer cancel()
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
				if err != nil {
					t.Fatal(err)
				}
				res, err := boundedPeers(&http.Client{Transport: &peer}).Do(r)
				if err == nil {
					_, err = io.Copy(io.Discard, res.Body)
					err = errors.Join(err, res.Body.Close())
				}
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("%v", err)
				}
				if peer.given > c.most {
					t.Errorf("%d bytes are taken", peer.given)
				}
				if took := time.Since(began); took > c.in {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
