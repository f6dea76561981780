package registries

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

// A mirror that has other names and wants a token is asked by containerd's names, without
// one, and by nobody who does not know the secret.
func TestRewriter(t *testing.T) {
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "ann" || password != "secret" {
			http.Error(w, "who?", http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, `{"token": "for %s"}`, r.URL.Query().Get("scope"))
	}))
	defer tokens.Close()
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer for repository:copies/app:pull" {
			w.Header().Set("Www-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="m",scope="repository:copies/app:pull"`, tokens.URL))
			http.Error(w, "no token", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Docker-Content-Digest", "sha256:1")
		fmt.Fprint(w, r.Method, " ", r.URL.RequestURI(), " ", r.Header.Get("Accept"))
	}))
	defer mirror.Close()
	at, _ := url.Parse(mirror.URL)
	c := parsed(t, fmt.Sprintf(`
mirrors: {docker.io: {endpoint: [%q], rewrite: {"^team/(.*)": "copies/$1", "^x": "never"}}}
configs: {%q: {auth: {username: ann, password: secret}}}
`, mirror.URL, at.Host))
	r, err := NewRewriter(c)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(r)
	defer s.Close()
	r.listener.Close()
	r.listener = s.Listener
	get := func(url string) (int, string, string) {
		q, err := http.NewRequest("GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Accept", "a/b")
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header.Get("Docker-Content-Digest"), string(b)
	}
	if code, digest, text := get(r.At("docker.io", 0) + "/team/app/manifests/v1?ns=docker.io"); code != 200 || digest != "sha256:1" || text != "GET /v2/copies/app/manifests/v1?ns=docker.io a/b" {
		t.Error(code, digest, text)
	}
	for _, path := range []string{"/x/docker.io/0/v2/team/app/manifests/v1", "/" + r.secret + "/docker.io/1/v2/a/blobs/b", "/" + r.secret + "/other/0/v2/a/blobs/b", "/"} {
		if code, _, _ := get(s.URL + path); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestRename(t *testing.T) {
	c := parsed(t, `mirrors: {docker.io: {endpoint: [m], rewrite: {"^library/(.*)": "hub/$1", "^(a|library)/": "never/"}}}`)
	m, err := c.rewritten(c.Mirrors["docker.io"], "m")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"library/busybox/manifests/latest": "never/busybox/manifests/latest", // "^(a" comes before "^l"
		"a/b/blobs/sha256:1":               "never/b/blobs/sha256:1",
		"b/blobs/manifests/v1":             "b/blobs/manifests/v1",
		"":                                 "",
	} {
		if got := m.rename(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
