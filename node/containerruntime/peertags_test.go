package containerruntime

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"
)

// TestAgreement: one node alone does not say what a tag stands for, nor does one that others
// contradict.
func TestAgreement(t *testing.T) {
	a, b := digest.FromString("a"), digest.FromString("b")
	for name, c := range map[string]struct {
		digests []digest.Digest
		is      digest.Digest
	}{
		"nobody":      {[]digest.Digest{"", ""}, ""},
		"one":         {[]digest.Digest{"", a}, ""},
		"two":         {[]digest.Digest{a, "", a}, a},
		"two of many": {[]digest.Digest{a, a, b}, ""},
		"each":        {[]digest.Digest{a, b}, ""},
	} {
		if got, err := agreement("i:1", c.digests); got != c.is || (err == nil) != (c.is != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// TestAgreedTag: a tag stands for what the nodes have agreed on, also if one of them says
// something else later; a digest needs nobody's word.
func TestAgreedTag(t *testing.T) {
	roots := x509.NewCertPool()
	right, wrong := digest.FromString("right"), digest.FromString("wrong")
	node := func(d digest.Digest) (address string, says *atomic.Pointer[digest.Digest]) {
		says = &atomic.Pointer[digest.Digest]{}
		says.Store(&d)
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("ns") != "docker.io" || !strings.HasPrefix(r.URL.Path, "/v2/library/x/") || *says.Load() == "" {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Docker-Content-Digest", says.Load().String())
		}))
		t.Cleanup(s.Close)
		roots.AddCert(s.Certificate())
		return s.Listener.Addr().String(), says
	}
	first, says := node(right)
	second, _ := node(right)
	hostile, _ := node(wrong)
	without, _ := node("")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	for _, peers := range [][]string{{hostile}, {hostile, without}, {hostile, first, second}} {
		if _, err := agreed(t.Context(), "docker.io/library/x:1", peers, client); err == nil {
			t.Errorf("%v agree", peers)
		}
	}
	if got, err := agreed(t.Context(), "docker.io/library/x@"+right.String(), []string{hostile}, client); err != nil || got != client {
		t.Errorf("by digest: %v", err)
	}
	got, err := agreed(t.Context(), "docker.io/library/x:1", []string{without, first, second}, client)
	if err != nil {
		t.Fatal(err)
	}
	get := func(what string) error {
		res, err := got.Get("https://" + first + "/v2/library/x/" + what + "?ns=docker.io")
		if err == nil {
			res.Body.Close()
		}
		return err
	}
	if err := get("manifests/1"); err != nil {
		t.Error(err)
	}
	says.Store(&wrong)
	if err := get("manifests/1"); err == nil {
		t.Error("another image than was agreed on is taken")
	}
	if err := get("blobs/" + right.String()); err != nil {
		t.Error(err)
	}
}
