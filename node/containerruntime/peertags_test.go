package containerruntime

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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

// A peer answers for the tag and the digests of one image, docker.io/library/x:1, which it
// says has the digest that it claims. Like a node in hostile hands it does not say how long
// its answers to HEAD are.
type peer struct {
	claims  digest.Digest
	content string
}

func (p peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	of, found := strings.CutPrefix(r.URL.Path, "/v2/library/x/manifests/")
	if r.URL.Query().Get("ns") != "docker.io" || !found || p.claims == "" || of != "1" && of != p.claims.String() {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
	w.Header().Set("Docker-Content-Digest", p.claims.String())
	if r.Method != http.MethodHead {
		fmt.Fprint(w, p.content)
	}
}

// TestAgreedTag: a tag stands for what the nodes have agreed on, whatever the first of them
// answers when it is asked again; a digest needs nobody's word.
func TestAgreedTag(t *testing.T) {
	roots := x509.NewCertPool()
	node := func(p peer) (address string) {
		s := httptest.NewTLSServer(p)
		t.Cleanup(s.Close)
		roots.AddCert(s.Certificate())
		return s.Listener.Addr().String()
	}
	right, wrong := digest.FromString("right"), digest.FromString("wrong")
	honest, liar := node(peer{right, "right"}), node(peer{right, "wrong"})
	other, without := node(peer{wrong, "wrong"}), node(peer{})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	for name, c := range map[string]struct {
		image   string
		peers   []string
		trusted bool
		is      digest.Digest
	}{
		"one node":              {"docker.io/library/x:1", []string{other}, false, ""},
		"one that has it":       {"docker.io/library/x:1", []string{other, without}, false, ""},
		"contradiction":         {"docker.io/library/x:1", []string{other, honest, honest}, false, ""},
		"agreement":             {"docker.io/library/x:1", []string{without, honest, honest}, false, right},
		"another after it":      {"docker.io/library/x:1", []string{liar, honest}, false, right},
		"one node that is ours": {"docker.io/library/x:1", []string{other}, true, wrong},
		"by digest":             {"docker.io/library/x@" + right.String(), []string{other, honest}, false, right},
	} {
		var is digest.Digest
		resolver, err := fromPeers(t.Context(), c.image, c.peers, client, c.trusted)
		if err == nil {
			var name string
			var d ocispec.Descriptor
			if name, d, err = resolver.Resolve(t.Context(), c.image); err == nil && name != c.image {
				t.Errorf("the name is %s", name)
			}
			is = d.Digest
		}
		if is != c.is || (err == nil) != (c.is != "") {
			t.Errorf("%s: %q, %v", name, is, err)
		}
	}
}
