package containerruntime

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/core/transfer/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestRegistryAnswersAreBounded: whoever may run a pod names its registry, and that names who
// gives tokens: neither takes this process' memory.
func TestRegistryAnswersAreBounded(t *testing.T) {
	var sent atomic.Int64
	endless := func(w http.ResponseWriter, begin string) {
		_, _ = io.WriteString(w, begin)
		for piece := bytes.Repeat([]byte("x"), 1<<20); sent.Load() < 256<<20; sent.Add(1 << 20) {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/token", func(w http.ResponseWriter, _ *http.Request) { endless(w, `{"token": "`) })
	mux.HandleFunc("/v2/token/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Www-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	mux.HandleFunc("/v2/manifest/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		w.(http.Flusher).Flush() // no length
		if r.Method == http.MethodGet {
			endless(w, "{")
		}
	})
	mux.HandleFunc("/v2/packed/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		w.Header().Set(digestHeader, digest.FromString("packed").String())
		w.Header().Set("Content-Length", "6")
		if asked := r.Header.Get("Accept-Encoding"); r.Method == http.MethodGet {
			if asked != "gzip" {
				t.Error("content is asked for in encoding", asked)
			}
			w.Header().Set("Content-Encoding", "zstd")
			_, _ = io.WriteString(w, "packed")
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	for repository, want := range map[string]string{
		"token":    "answer of a registry is larger than 4194304 bytes",
		"manifest": "answer of a registry is larger than 4194304 bytes",
		"packed":   "answers in encoding zstd",
	} {
		sent.Store(0)
		name := server.Listener.Addr().String() + "/" + repository + ":v1"
		of, err := registry.NewOCIRegistry(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		r := Config{RegistryConfigDir: t.TempDir()}.boundedRegistry(t.Context(), &cri.PullImageRequest{}, of)
		_, target, err := r.Resolve(t.Context())
		if err == nil {
			err = readAll(t.Context(), r, name, target)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", repository, err)
		}
		if got := sent.Load(); got > 32<<20 { // sockets have room for some
			t.Errorf("%s: %d MiB were taken", repository, got>>20)
		}
	}
}

func readAll(ctx context.Context, r boundedRegistry, name string, d ocispec.Descriptor) error {
	f, err := r.Fetcher(ctx, name)
	if err != nil {
		return err
	}
	rc, err := f.Fetch(ctx, d)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, rc)
	return errors.Join(err, rc.Close())
}

// TestSlowAnswer: what is no content comes in time, and content as slowly as it likes: the
// CRI ends a pull that makes no progress.
func TestSlowAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for encoding, want := range map[string]bool{"": false, "gzip": true} {
			began := time.Now()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://registry/token", nil)
			if err != nil {
				t.Fatal(err)
			}
			if encoding != "" {
				r.Header.Set("Accept-Encoding", encoding)
			}
			res, err := boundedRegistries(&fakePeer{status: http.StatusOK, size: 600, piece: 1, pause: time.Second}).RoundTrip(r)
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				err = errors.Join(err, res.Body.Close())
			}
			if took := time.Since(began); (err == nil) != want || !want && took != answerTime {
				t.Errorf("encoding %q: %v after %v", encoding, err, took)
			}
		}
	})
}

// A farConn is a connection to an address.
type farConn struct {
	net.Conn
	to net.Addr
}

func (c farConn) RemoteAddr() net.Addr { return c.to }

// TestMetadataAddresses: a registry has this node ask where a cloud tells it its credentials,
// by a redirect, as the giver of tokens or by a name that stands for it.
func TestMetadataAddresses(t *testing.T) {
	for address, ok := range map[string]bool{
		"169.254.169.254:80": false, "[::ffff:169.254.169.254]:80": false, "[fd00:ec2::254]:80": false, "100.100.100.200:443": false,
		"169.254.20.10:5000": true, "10.0.0.1:443": true, "[fe80::1%eth0]:443": true,
	} {
		to, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		here, there := net.Pipe()
		defer there.Close()
		transport := boundedRegistries(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return farConn{here, to}, nil }})
		go func() {
			b := make([]byte, 1<<10)
			if _, err := there.Read(b); err == nil {
				_, _ = io.WriteString(there, "HTTP/1.1 204 No Content\r\n\r\n")
			}
		}()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://innocent.example.com/", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := transport.RoundTrip(r)
		if err == nil {
			res.Body.Close()
		}
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "no registry is asked there") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestCredentialsFor: a pod's credentials go to the registry that they are for.
func TestCredentialsFor(t *testing.T) {
	asked := []string{"mirror.example.com", "r.example.com"}
	for name, c := range map[string]struct {
		auth *cri.AuthConfig
		want string
	}{
		"a name and a password":     {&cri.AuthConfig{Username: "ann", Password: "secret"}, "ann secret"},
		"a token":                   {&cri.AuthConfig{IdentityToken: "token"}, " token"},
		"both in one":               {&cri.AuthConfig{Auth: "YW5uOnNlY3JldA=="}, "ann secret"},
		"what is none":              {&cri.AuthConfig{Auth: "YW5u"}, "error"},
		"none":                      {&cri.AuthConfig{}, " "},
		"those of this registry":    {&cri.AuthConfig{Username: "ann", Password: "secret", ServerAddress: "https://r.example.com"}, "ann secret"},
		"those of another registry": {&cri.AuthConfig{Username: "ann", Password: "secret", ServerAddress: "https://other.example.com"}, " "},
	} {
		user, secret, err := credentialsFor(c.auth, asked, "r.example.com")
		got := user + " " + secret
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, host := range []string{"other.example.com", "r.example.com:8443", "example.com", ""} {
		if user, secret, err := credentialsFor(&cri.AuthConfig{Username: "ann", Password: "secret"}, asked, host); user+secret != "" || err != nil {
			t.Errorf("%s gets credentials, %v", host, err)
		}
	}
}

// TestCredentialsStayWithRegistry: a registry redirects to another host for a layer, and that
// wants credentials, itself or by a giver of tokens: it does not get the pod's.
func TestCredentialsStayWithRegistry(t *testing.T) {
	const user, secret = "ann", "open-sesame"
	coded := base64.StdEncoding.EncodeToString([]byte(user + ":" + secret))
	for how, auth := range map[string]*cri.AuthConfig{
		"name and password": {Username: user, Password: secret},
		"token":             {IdentityToken: secret},
		"both in one":       {Auth: coded},
	} {
		for _, challenge := range []string{`Basic realm="other"`, `Bearer realm="http://REALM/token",service="x",scope="y"`} {
			basic := auth.IdentityToken == "" // a token without a name is for a giver of tokens
			var seen atomic.Int64
			var other *httptest.Server
			other = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				seen.Add(1)
				dump, err := httputil.DumpRequest(r, true)
				if text := string(dump); err != nil || strings.Contains(text, secret) || strings.Contains(text, coded) || r.Header.Get("Authorization") != "" {
					t.Errorf("%s, %s: another host sees %v\n%s", how, challenge, err, text)
				}
				if r.URL.Path == "/token" {
					_, _ = io.WriteString(w, `{"token": "", "access_token": ""}`)
					return
				}
				w.Header().Set("Www-Authenticate", strings.ReplaceAll(challenge, "REALM", strings.Replace(other.Listener.Addr().String(), "127.0.0.1", "localhost", 1)))
				w.WriteHeader(http.StatusUnauthorized)
			}))
			elsewhere := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
			var known atomic.Bool
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/token":
					_ = r.ParseForm()
					known.Store(r.Form.Get("refresh_token") == secret)
					_, _ = io.WriteString(w, `{"access_token": "granted"}`)
					return
				case basic && r.Header.Get("Authorization") == "":
					w.Header().Set("Www-Authenticate", `Basic realm="registry"`)
				case !basic && r.Header.Get("Authorization") != "Bearer granted":
					w.Header().Set("Www-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="x"`)
				default:
					if basic {
						_, password, _ := r.BasicAuth()
						known.Store(password == secret)
					}
					http.Redirect(w, r, elsewhere+r.URL.Path, http.StatusTemporaryRedirect)
					return
				}
				w.WriteHeader(http.StatusUnauthorized)
			}))
			name := server.Listener.Addr().String() + "/repository:v1"
			of, err := registry.NewOCIRegistry(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			r := Config{RegistryConfigDir: t.TempDir()}.boundedRegistry(t.Context(), &cri.PullImageRequest{Auth: auth}, of)
			layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("layer"), Size: 5}
			if err := readAll(t.Context(), r, name, layer); err == nil {
				t.Errorf("%s, %s: a layer that nobody has", how, challenge)
			}
			if !known.Load() || seen.Load() == 0 {
				t.Errorf("%s, %s: the registry knows who asks: %v; the other host is asked %d times", how, challenge, known.Load(), seen.Load())
			}
			server.Close()
			other.Close()
		}
	}
}

// TestSlowDownloads: parts that do not come keep the pulls of other images waiting for no place.
func TestSlowDownloads(t *testing.T) {
	layer := []byte("layer")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(layer) }))
	defer server.Close()
	name := server.Listener.Addr().String() + "/repository:v1"
	of, err := registry.NewOCIRegistry(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	r := Config{RegistryConfigDir: t.TempDir()}.boundedRegistry(t.Context(), &cri.PullImageRequest{}, of)
	taken := semaphore.NewWeighted(1) // by somebody's slow layer
	if err := taken.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	r.SetResolverOptions(transfer.WithDownloadLimiter(taken))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := readAll(ctx, r, name, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(layer), Size: int64(len(layer))}); err != nil {
		t.Error(err)
	}
}

// TestLongHeader: the header of a registry's answer has a bound of its own.
func TestLongHeader(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range 2 * maxHeader / 1024 {
			w.Header().Set("X"+strings.Repeat("x", 1000)+strconv.Itoa(i), "")
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: boundedRegistries(http.DefaultTransport.(*http.Transport).Clone())}
	res, err := client.Get(server.URL)
	if err == nil {
		_ = res.Body.Close()
		t.Errorf("answered with %d headers", len(res.Header))
	}
}

// TestFewFetches: parts of an image that wait for their turn are not asked for, and each turn is
// given back once.
func TestFewFetches(t *testing.T) {
	var asked atomic.Int32
	f := fewFetches{fetcherFunc(func() (io.ReadCloser, error) {
		if asked.Add(1) == 3 {
			return nil, errors.New("refused")
		}
		return io.NopCloser(strings.NewReader("")), nil
	}), semaphore.NewWeighted(2)}
	fetch := func(ctx context.Context) (io.ReadCloser, error) { return f.Fetch(ctx, ocispec.Descriptor{}) }
	first, err := fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fetch(over); !errors.Is(err, context.Canceled) || asked.Load() != 2 {
		t.Errorf("the third of two: %v, %d were asked for", err, asked.Load())
	}
	for range 2 {
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := fetch(t.Context()); err == nil {
		t.Error("no error of one that is refused")
	}
	if _, err := fetch(t.Context()); err != nil {
		t.Errorf("in the turn of one that was refused: %v", err)
	}
	if f.slots.TryAcquire(1) {
		t.Error("closing twice gave two turns back")
	}
}

type fetcherFunc func() (io.ReadCloser, error)

func (f fetcherFunc) Fetch(context.Context, ocispec.Descriptor) (io.ReadCloser, error) { return f() }
