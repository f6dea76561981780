package registries

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"

	"knarr/internal/run"
)

// A Rewriter serves mirrors in which images have other names: containerd asks it by an
// image's own name, and it asks the mirror by the other one. It has the credentials of
// mirrors, so what it is asked has to begin with a secret that only root can read.
type Rewriter struct {
	listener net.Listener
	secret   string
	mirrors  map[string][]*rewritten // by registry
}

// A rewritten mirror.
type rewritten struct {
	at         *url.URL
	rules      []rule
	client     *http.Client
	authorizer docker.Authorizer
}

type rule struct {
	from *regexp.Regexp
	to   string
}

const (
	headerTime = 30 * time.Second
	// attempts are what a registry is asked: it says how it wants to be asked, twice at most.
	attempts = 3
)

// NewRewriter listens on loopback, if a mirror has other names for images; otherwise it is nil.
func NewRewriter(c Config) (*Rewriter, error) {
	r := &Rewriter{secret: rand.Text(), mirrors: map[string][]*rewritten{}}
	for registry, m := range c.Mirrors {
		if len(m.Rewrites) == 0 {
			continue
		}
		for _, e := range m.Endpoints {
			one, err := c.rewritten(m, e)
			if err != nil {
				return nil, fmt.Errorf("mirror %s of %s: %w", e, registry, err)
			}
			r.mirrors[registry] = append(r.mirrors[registry], one)
		}
	}
	if len(r.mirrors) == 0 {
		return nil, nil
	}
	var err error
	r.listener, err = net.Listen("tcp", "127.0.0.1:0")
	return r, err
}

func (c Config) rewritten(m Mirror, at string) (*rewritten, error) {
	u, err := endpoint(at)
	if err != nil {
		return nil, err
	}
	one := &rewritten{at: u}
	for _, from := range slices.Sorted(maps.Keys(m.Rewrites)) {
		x, err := regexp.Compile(from)
		if err != nil {
			return nil, err
		}
		one.rules = append(one.rules, rule{x, m.Rewrites[from]})
	}
	h := c.host(u.Host)
	config, err := h.TLS.config()
	if err != nil {
		return nil, err
	}
	transport := docker.DefaultHTTPTransport(config)
	transport.MaxResponseHeaderBytes = 1 << 20 // as for registries that are asked without a rewrite
	transport.ResponseHeaderTimeout = headerTime
	one.client = &http.Client{Transport: transport}
	one.authorizer = docker.NewDockerAuthorizer(docker.WithAuthClient(one.client), docker.WithAuthCreds(c.credentials(u.Host).of))
	return one, nil
}

// config is nil for the system's authorities.
func (t *TLS) config() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	c := &tls.Config{InsecureSkipVerify: t.InsecureSkipVerify}
	if t.CAFile != "" {
		b, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, err
		}
		if c.RootCAs, err = x509.SystemCertPool(); err != nil {
			return nil, err
		}
		if !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("%s: no certificate in it", t.CAFile)
		}
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// of is the user's name and password, or a token without a name.
func (a *Auth) of(string) (user, secret string, err error) {
	switch {
	case a == nil:
		return "", "", nil
	case a.Username != "":
		return a.Username, a.Password, nil
	case a.IdentityToken != "":
		return "", a.IdentityToken, nil
	case a.Auth != "":
		return decodeAuth(a.Auth)
	}
	return "", "", nil
}

// At is where a mirror is served.
func (r *Rewriter) At(registry string, endpoint int) string {
	return fmt.Sprintf("http://%s/%s/%s/%d/v2", r.listener.Addr(), r.secret, url.PathEscape(registry), endpoint)
}

// Run serves until ctx ends.
func (r *Rewriter) Run(ctx context.Context) {
	s := &http.Server{Handler: r, ReadHeaderTimeout: headerTime, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
	var wg run.Group
	defer wg.Wait()
	wg.Go("registry mirrors: end", func() {
		<-ctx.Done()
		_ = s.Close()
	})
	if err := s.Serve(r.listener); !errors.Is(err, http.ErrServerClosed) {
		slog.ErrorContext(ctx, "registry mirrors with other names for images", "err", err)
	}
}

// ServeHTTP passes a question on.
func (r *Rewriter) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	m, path := r.find(q.URL.EscapedPath())
	if m == nil || q.Method != http.MethodGet && q.Method != http.MethodHead {
		http.NotFound(w, q)
		return
	}
	answer, err := m.ask(q, path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	for _, name := range []string{"Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "Docker-Content-Digest", "Etag", "Oci-Filters-Applied", "Link"} {
		if v := answer.Header.Values(name); len(v) > 0 {
			w.Header()[name] = v
		}
	}
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body) // one that breaks off is too short, which containerd sees
}

// find is the mirror that a path names, and what is asked of it, with the image's other name.
func (r *Rewriter) find(path string) (*rewritten, string) {
	parts := strings.SplitN(path, "/", 6) // "", secret, registry, number, v2, what is asked
	if len(parts) < 6 || parts[1] != r.secret || parts[4] != "v2" {
		return nil, ""
	}
	registry, err := url.PathUnescape(parts[2])
	n, err2 := strconv.Atoi(parts[3])
	if all := r.mirrors[registry]; err == nil && err2 == nil && n >= 0 && n < len(all) {
		return all[n], all[n].rename(parts[5])
	}
	return nil, ""
}

// rename gives the repository of a path of the registry's API its other name, by the first
// expression, in the order of their text, that matches it.
func (m *rewritten) rename(path string) string {
	at := -1
	for _, kind := range []string{"/manifests/", "/blobs/", "/tags/", "/referrers/"} {
		at = max(at, strings.LastIndex(path, kind))
	}
	if at < 0 {
		return path
	}
	name := path[:at]
	for _, r := range m.rules {
		if r.from.MatchString(name) {
			return r.from.ReplaceAllString(name, r.to) + path[at:]
		}
	}
	return path
}

// ask asks the mirror, as it says that it wants to be asked.
func (m *rewritten) ask(q *http.Request, path string) (*http.Response, error) {
	to := *m.at
	to.Path += "/" + path
	to.RawQuery = q.URL.RawQuery
	var answers []*http.Response
	for {
		out, err := http.NewRequestWithContext(q.Context(), q.Method, to.String(), nil)
		if err != nil {
			return nil, err
		}
		for _, name := range []string{"Accept", "Range", "User-Agent", "If-None-Match"} {
			if v := q.Header.Values(name); len(v) > 0 {
				out.Header[name] = v
			}
		}
		if err := m.authorizer.Authorize(out.Context(), out); err != nil {
			return nil, err
		}
		answer, err := m.client.Do(out)
		if err != nil {
			return nil, err
		}
		if answers = append(answers, answer); answer.StatusCode != http.StatusUnauthorized || len(answers) == attempts {
			return answer, nil
		}
		answer.Body.Close()
		if err := m.authorizer.AddResponses(q.Context(), answers); err != nil {
			return nil, err
		}
	}
}
