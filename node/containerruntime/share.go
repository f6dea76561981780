package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// sharedAtOnce bounds the answers under way, sharedWith those to one node, so that one alone
	// keeps no other from images, and shareTime how long one may take.
	sharedAtOnce = 16
	sharedWith   = 4
	shareTime    = 10 * time.Minute
	// sharedNames bounds the images of one repository that a digest is looked for in, and
	// sharedParts the manifests and layers of one of them.
	sharedNames = 100
	sharedParts = 1000
)

// Share answers other nodes that want this node's images, as a registry does: manifests
// and blobs below /v2/, of the registry that ?ns= names. public says whether everybody may
// have an image, by its name and id; all others are not there.
func (i *Images) Share(public func(name, id string) bool) http.Handler {
	s := &share{images: i.client.ImageService(), content: i.client.ContentStore(), public: public}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/{$}", func(http.ResponseWriter, *http.Request) {}) // it is such an API
	mux.Handle("GET /v2/{path...}", s)
	return mux
}

type share struct {
	images  images.Store
	content content.Store
	public  func(name, id string) bool
	answers answers
}

// answers counts those under way, by who asked.
type answers struct {
	mu  sync.Mutex
	all int
	to  map[string]int
}

// begin counts one more, until end is called; not if there are too many.
func (a *answers) begin(who string) (end func(), ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all >= sharedAtOnce || a.to[who] >= sharedWith {
		return nil, false
	}
	if a.to == nil {
		a.to = map[string]int{}
	}
	a.all++
	a.to[who]++
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all--
		if a.to[who]--; a.to[who] == 0 {
			delete(a.to, who)
		}
	}), true
}

// asker names the client: a node by its certificate, others by their address.
func asker(r *http.Request) string {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return r.TLS.PeerCertificates[0].Subject.CommonName
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return host
}

func (s *share) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	end, ok := s.answers.begin(asker(r))
	if !ok {
		http.Error(w, "too many images are being fetched from this node", http.StatusTooManyRequests)
		return
	}
	defer end()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(shareTime)) // not on all connections; ctx ends the rest
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(r.Context(), imageNamespace), shareTime)
	defer cancel()
	d, err := s.find(ctx, r.URL.Query().Get("ns"), r.PathValue("path"))
	if err == nil {
		err = s.write(ctx, w, r, d)
	}
	switch {
	case errdefs.IsNotFound(err):
		http.NotFound(w, r)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// write answers with content. Nothing of it has been written if there is an error.
func (s *share) write(ctx context.Context, w http.ResponseWriter, r *http.Request, d ocispec.Descriptor) error {
	at, err := s.content.ReaderAt(ctx, ocispec.Descriptor{Digest: d.Digest})
	if err != nil {
		return err
	}
	defer at.Close()
	h := w.Header()
	h.Set("Content-Type", d.MediaType)
	h.Set("Docker-Content-Digest", d.Digest.String())
	h.Set("Content-Length", strconv.FormatInt(at.Size(), 10))
	http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(at, 0, at.Size()))
	return nil
}

// find is what a path names in a registry's repository, if it is there and public.
func (s *share) find(ctx context.Context, registry, path string) (d ocispec.Descriptor, err error) {
	repository, kind, of := splitPath(path)
	if registry == "" || repository == "" {
		return d, fmt.Errorf("%s: %w", path, errdefs.ErrNotFound)
	}
	name := registry + "/" + repository
	if kind == "manifests" && !strings.Contains(of, ":") {
		image, err := s.images.Get(ctx, name+":"+of)
		if err != nil {
			return d, err
		}
		if !s.may(ctx, image) {
			return d, fmt.Errorf("image %s: %w", image.Name, errdefs.ErrNotFound)
		}
		return image.Target, nil
	}
	want, err := digest.Parse(of)
	if err != nil {
		return d, fmt.Errorf("%s: %w", of, errdefs.ErrNotFound)
	}
	// Content belongs to nobody in containerd: only what an image of this repository
	// consists of is given away, so that a digest alone opens nothing.
	all, err := s.images.List(ctx, fmt.Sprintf("name~=%q", "^"+regexp.QuoteMeta(name)+"[:@]"))
	if err != nil {
		return d, err
	}
	for _, image := range all[:min(len(all), sharedNames)] {
		if !s.may(ctx, image) {
			continue
		}
		if d, found := s.part(ctx, image.Target, want); found {
			return d, nil
		}
	}
	return d, fmt.Errorf("%s of %s: %w", want, name, errdefs.ErrNotFound)
}

// splitPath takes the path of a question apart: the repository, manifests or blobs, and
// which of them.
func splitPath(path string) (repository, kind, of string) {
	rest, of := path, ""
	for _, part := range []*string{&of, &kind} {
		at := strings.LastIndexByte(rest, '/')
		if at < 0 {
			return "", "", ""
		}
		rest, *part = rest[:at], rest[at+1:]
	}
	if kind != "manifests" && kind != "blobs" {
		return "", "", ""
	}
	return rest, kind, of
}

// may says whether everybody may have an image. One that is not whole is nobody's.
func (s *share) may(ctx context.Context, image images.Image) bool {
	config, err := image.Config(ctx, s.content, platforms.Default())
	return err == nil && s.public(image.Name, config.Digest.String())
}

// errFound ends a walk.
var errFound = errors.New("found")

// part looks for a digest among what an image consists of.
func (s *share) part(ctx context.Context, target ocispec.Descriptor, want digest.Digest) (d ocispec.Descriptor, found bool) {
	parts := 0
	// As a pull does: of other platforms it has nothing, whatever else has that digest.
	err := images.Walk(ctx, images.FilterPlatforms(images.HandlerFunc(func(ctx context.Context, one ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if parts++; parts > sharedParts {
			return nil, fmt.Errorf("an image of more than %d parts", sharedParts)
		}
		if one.Digest == want {
			d = one
			return nil, errFound
		}
		children, err := images.Children(ctx, s.content, one)
		if err != nil { // not here, or not what it is called: the rest may be
			return nil, nil
		}
		return children, nil
	}), platforms.Default()), target)
	return d, errors.Is(err, errFound)
}
