package containerruntime

import (
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/containerd/v2/core/transfer/registry"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/containerruntime/registries"
)

// mirrored is a configuration by what registries.yaml says, as a runtime that has started has it.
// What it logs is in logged.
func mirrored(t *testing.T, text string) (c Config, logged *strings.Builder) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "registries.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	logged = &strings.Builder{}
	c = Config{RegistryConfigDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(logged, nil))}
	var err error
	if c.Registries, err = registries.Read(path, true); err != nil {
		t.Fatal(err)
	}
	c.Registries.NoDefault = true // no test asks who is out there
	if err := c.mirrors(); err != nil {
		t.Fatal(err)
	}
	return c, logged
}

// resolve is the first half of a pull: what a tag stands for.
func (c Config) resolve(t *testing.T, image string, auth *cri.AuthConfig) (boundedRegistry, error) {
	t.Helper()
	of, err := registry.NewOCIRegistry(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	r := c.boundedRegistry(t.Context(), &cri.PullImageRequest{Auth: auth}, of)
	_, _, err = r.Resolve(t.Context())
	return r, err
}

// A tokenRegistry has any image below copies/, for those who have a token for just that. Its
// tokens are for ann, and broken says how many questions for one are not answered.
type tokenRegistry struct {
	password string
	broken   atomic.Int32
}

func (r *tokenRegistry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.URL.Path == "/token" {
		_ = q.ParseForm()
		user, password, ok := q.BasicAuth()
		if !ok {
			user, password = q.Form.Get("username"), q.Form.Get("password")
		}
		switch scope := strings.Join(q.Form["scope"], " "); {
		case r.broken.Add(-1) >= 0:
			http.Error(w, "tokens are out", http.StatusBadGateway)
		case user != "ann" || password != r.password:
			http.Error(w, "who?", http.StatusUnauthorized)
		case strings.Contains(scope, " ") || !strings.HasPrefix(scope, "repository:copies/"):
			http.Error(w, "no such repository", http.StatusForbidden)
		default:
			fmt.Fprintf(w, `{"access_token": %q, "token": %q}`, scope, scope)
		}
		return
	}
	repository, _, _ := strings.Cut(strings.TrimPrefix(q.URL.Path, "/v2/"), "/manifests/")
	scope := "repository:" + repository + ":pull"
	if q.Header.Get("Authorization") != "Bearer "+scope {
		w.Header().Set("Www-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="m",scope=%q`, q.Host, scope))
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
	w.Header().Set(digestHeader, digest.FromString(repository).String())
	w.Header().Set("Content-Length", "2")
}

// TestRenamedTokens: a mirror that has other names gives tokens for each of them, and each pull
// asks anew: neither another image's pull nor one that failed is in its way.
func TestRenamedTokens(t *testing.T) {
	mirror := &tokenRegistry{password: "secret"}
	server := httptest.NewServer(mirror)
	defer server.Close()
	host := server.Listener.Addr().String()
	c, _ := mirrored(t, fmt.Sprintf(`
mirrors: {r.example.com: {endpoint: [%q], rewrite: {"^team/(.*)": "copies/$1"}}}
configs: {%q: {auth: {username: ann, password: secret}}}
`, server.URL, host))
	mirror.broken.Store(2) // containerd asks in two ways
	if _, err := c.resolve(t, "r.example.com/team/a:v1", nil); err == nil || !strings.Contains(err.Error(), "502") || !strings.Contains(err.Error(), host+"/token") {
		t.Errorf("while there are no tokens: %v", err)
	}
	mirror.broken.Store(0)
	for _, image := range []string{"r.example.com/team/a:v1", "r.example.com/team/b:v1", "r.example.com/team/a:v1"} {
		if _, err := c.resolve(t, image, nil); err != nil {
			t.Errorf("%s: %v", image, err)
		}
	}
	if _, err := c.resolve(t, "r.example.com/other/a:v1", nil); err == nil {
		t.Error("a name that no expression matches is one of the mirror's")
	}
}

// TestRenamedCredentials: a pod's credentials come before those of the file, where images have
// other names too.
func TestRenamedCredentials(t *testing.T) {
	server := httptest.NewServer(&tokenRegistry{password: "of the pod"})
	defer server.Close()
	c, _ := mirrored(t, fmt.Sprintf(`
mirrors: {"*": {endpoint: [%q], rewrite: {"^team/(.*)": "copies/$1"}}}
configs: {%q: {auth: {username: ann, password: of the file}}}
`, server.URL, server.Listener.Addr()))
	if _, err := c.resolve(t, "r.example.com/team/a:v1", &cri.AuthConfig{Username: "ann", Password: "of the pod"}); err != nil {
		t.Error("with the pod's:", err)
	}
	if _, err := c.resolve(t, "r.example.com/team/a:v1", nil); err == nil || !strings.Contains(err.Error(), "401 Unauthorized") {
		t.Errorf("with the file's: %v", err)
	}
}

// TestRenamedDown: of two mirrors the word of the one that answers counts, and who is down is
// named with the reason.
func TestRenamedDown(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	empty := httptest.NewServer(http.NotFoundHandler())
	defer empty.Close()
	const text = `mirrors: {r.example.com: {endpoint: [%s], rewrite: {"^team/(.*)": "copies/$1"}}}`
	c, _ := mirrored(t, fmt.Sprintf(text, gone.URL+","+empty.URL))
	if _, err := c.resolve(t, "r.example.com/team/a:v1", nil); !errdefs.IsNotFound(err) {
		t.Errorf("one that is down and one that has no such image: %v", err)
	}
	c, _ = mirrored(t, fmt.Sprintf(text, gone.URL))
	if _, err := c.resolve(t, "r.example.com/team/a:v1", nil); err == nil || !strings.Contains(err.Error(), gone.Listener.Addr().String()+": connect: connection refused") {
		t.Errorf("one that is down: %v", err)
	}
}

// TestRenamedRedirects: where a mirror sends is meant from where it was asked, and is its own name
// for what is there, whatever it looks like.
func TestRenamedRedirects(t *testing.T) {
	layer := []byte("layer")
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(layer), Size: int64(len(layer))}
	mux := http.NewServeMux()
	mux.HandleFunc("/v2/copies/a/blobs/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "../next/a?sign=x") // http.Redirect would make it absolute
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/v2/copies/a/next/a", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/v2/team/a/blobs/stored?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/v2/team/a/blobs/stored", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "sign=x" {
			t.Errorf("asked with %q", r.URL.RawQuery)
		}
		_, _ = w.Write(layer)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	c, _ := mirrored(t, `mirrors: {r.example.com: {endpoint: ["`+server.URL+`"], rewrite: {"^team/(.*)": "copies/$1"}}}`)
	const image = "r.example.com/team/a:v1"
	r, _ := c.resolve(t, image, nil)
	if err := readAll(t.Context(), r, image, d); err != nil {
		t.Error(err)
	}
}

// TestRepeatedMirror: an endpoint that the file has twice is asked, which the log says.
func TestRepeatedMirror(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	c, logged := mirrored(t, fmt.Sprintf(`mirrors: {r.example.invalid: {endpoint: ["%[1]s", "%[1]s/", "%[1]s/v2"]}}`, server.URL))
	if _, err := c.resolve(t, "r.example.invalid/a:v1", nil); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	if !strings.Contains(logged.String(), server.URL+"/v2") {
		t.Errorf("the log says %q", logged)
	}
}

// TestMissingAuthority: a file of TLS that is not there is logged at the start, keeps images of
// its host alone from being pulled, and counts once it is there.
func TestMissingAuthority(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		w.Header().Set(digestHeader, digest.FromString("a").String())
		w.Header().Set("Content-Length", "2")
	})
	secure, plain := httptest.NewTLSServer(answer), httptest.NewServer(answer)
	defer secure.Close()
	defer plain.Close()
	secure.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(io.Discard, nil), 0)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	host := secure.Listener.Addr().String()
	c, logged := mirrored(t, fmt.Sprintf(`
mirrors:
  r.example.com: {endpoint: [%q], rewrite: {"^team/(.*)": "copies/$1"}}
  "*": {endpoint: [%q]}
configs: {%q: {tls: {ca_file: %s}}}
`, secure.URL, plain.URL, host, ca))
	want := fmt.Sprintf("registries.yaml: configs[%q].tls.ca_file: open %s: no such file or directory", host, ca)
	if got := strings.ReplaceAll(logged.String(), `\"`, `"`); !strings.Contains(got, want) {
		t.Errorf("the log says %s\nwant %s", got, want)
	}
	if _, err := c.resolve(t, "r.example.com/team/a:v1", nil); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v\nwant %s", err, want)
	}
	if _, err := c.resolve(t, "other.example.com/a:v1", nil); err != nil {
		t.Error("another registry:", err)
	}
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.resolve(t, "r.example.com/team/a:v1", nil); err != nil {
		t.Error("with the file:", err)
	}
}

// TestAdministratorsHosts: in a directory that has a hosts.toml of its own nothing is renamed.
func TestAdministratorsHosts(t *testing.T) {
	var asked atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.URL.Path)
		http.NotFound(w, r)
	}))
	defer server.Close()
	c, _ := mirrored(t, `mirrors: {r.example.com: {endpoint: [m.example.com], rewrite: {"^team/(.*)": "copies/$1"}}}`)
	file := filepath.Join(c.RegistryConfigDir, "r.example.com", "hosts.toml")
	if err := os.WriteFile(file, []byte("server = \""+server.URL+"\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.resolve(t, "r.example.com/team/a:v1", nil); !errdefs.IsNotFound(err) || asked.Load() != "/v2/team/a/manifests/v1" {
		t.Errorf("%v is asked for: %v", asked.Load(), err)
	}
}
