package containerruntime

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/core/transfer/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// answerTime is the most that a registry's answer may take that is no content: a token, or
// what a tag stands for.
const answerTime = 2 * time.Minute

// metadataAddresses are where clouds tell a machine its own credentials.
var metadataAddresses = []netip.Addr{
	netip.MustParseAddr("169.254.169.254"), // most of them
	netip.MustParseAddr("fd00:ec2::254"),   // AWS: by IPv6,
	netip.MustParseAddr("169.254.170.2"),   // for tasks,
	netip.MustParseAddr("169.254.170.23"),  // and for pods
	netip.MustParseAddr("fd00:ec2::23"),
	netip.MustParseAddr("fd20:ce::254"),    // Google: by IPv6
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("168.63.129.16"),   // Azure: its wire server
}

// A pullKey marks the context of the CRI's pulls, with the credentials of their pod.
type pullKey struct{}

// markPulls lets a transfer know that it is the CRI's.
func markPulls(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	switch of := req.(type) {
	case *cri.PullImageRequest:
		ctx = context.WithValue(ctx, pullKey{}, of)
	case *cri.RunPodSandboxRequest: // the sandbox' image, should it be missing
		ctx = context.WithValue(ctx, pullKey{}, &cri.PullImageRequest{})
	}
	return next(ctx, req)
}

// A boundedRegistry is one whose owner may be anybody: containerd's resolver asks it, as it
// does any, by a client that has bounds.
type boundedRegistry struct {
	*registry.OCIRegistry
	resolver remotes.Resolver
}

// boundedRegistry gives the source of a pull of the CRI's.
func (c Config) boundedRegistry(ctx context.Context, pull *cri.PullImageRequest, of *registry.OCIRegistry) boundedRegistry {
	return boundedRegistry{of, docker.NewResolver(docker.ResolverOptions{Hosts: func(name string) ([]docker.RegistryHost, error) {
		return c.registryHosts(ctx, pull, of.Image(), name)
	}})}
}

func (r boundedRegistry) Resolve(ctx context.Context) (name string, target ocispec.Descriptor, err error) {
	return r.resolver.Resolve(ctx, r.Image())
}

// SetResolverOptions lets each pull have as many downloads of its own as containerd gives all of
// them together: three that hardly come would keep every other pod's image waiting.
func (r boundedRegistry) SetResolverOptions(options ...transfer.ImageResolverOption) {
	options = append(slices.Clone(options), transfer.WithDownloadLimiter(semaphore.NewWeighted(maxDownloads)))
	if resolver, ok := r.resolver.(remotes.ResolverWithOptions); ok {
		resolver.SetOptions(options...)
	}
}

func (r boundedRegistry) Fetcher(ctx context.Context, ref string) (transfer.Fetcher, error) {
	f, err := r.resolver.Fetcher(ctx, ref)
	if err != nil {
		return nil, err
	}
	return fewFetches{f, semaphore.NewWeighted(maxDownloads)}, nil
}

// fewFetches has each part of an image wait for its turn before it is asked for. containerd asks
// for all at once and has them wait at their first byte, each with a buffer of 1 MiB: those of
// a few images with hundreds of layers would put off the collection of garbage for as much.
type fewFetches struct {
	transfer.Fetcher
	slots *semaphore.Weighted
}

func (f fewFetches) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	if err := f.slots.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	r, err := f.Fetcher.Fetch(ctx, desc)
	if err != nil {
		f.slots.Release(1)
		return nil, err
	}
	return &fetched{r, sync.OnceFunc(func() { f.slots.Release(1) })}, nil
}

// A fetched part gives its turn back when it is closed.
type fetched struct {
	io.ReadCloser
	back func()
}

func (f *fetched) Close() error {
	defer f.back()
	return f.ReadCloser.Close()
}

// credentialsFor are a pod's credentials if they are for a host, in the CRI's order of its
// fields: a name and a password, or a token without a name. The kubelet, as upstream's, does
// not say whose they are: they are for the hosts that are asked for the image, its registry and
// the mirrors of that. containerd would give them to a host to which one of these redirects,
// too, if that answers 401. Pure.
func credentialsFor(a *cri.AuthConfig, asked []string, host string) (user, secret string, err error) {
	if !slices.Contains(asked, host) {
		return "", "", nil
	}
	if a.ServerAddress != "" {
		u, err := url.Parse(a.ServerAddress)
		if err != nil {
			return "", "", fmt.Errorf("address of a registry: %w", err)
		}
		if u.Host != host {
			return "", "", nil
		}
	}
	switch {
	case a.Username != "":
		return a.Username, a.Password, nil
	case a.IdentityToken != "":
		return "", a.IdentityToken, nil
	case a.Auth == "":
		return "", "", nil
	}
	b, err := base64.StdEncoding.DecodeString(a.Auth)
	if err != nil {
		return "", "", err
	}
	user, secret, ok := strings.Cut(string(b), ":")
	if !ok {
		return "", "", fmt.Errorf("credentials of a pod for %s have no name and password", host)
	}
	return user, strings.Trim(secret, "\x00"), nil
}

const (
	// maxHeader bounds the header of an answer, in bytes.
	maxHeader = 1 << 20
	// maxDownloads is how many parts of an image are fetched at once.
	maxDownloads = 3
)

// boundedRegistries gives a client's transport its bounds.
func boundedRegistries(next http.RoundTripper) http.RoundTripper {
	switch t := next.(type) {
	case registryTransport:
		return t
	case *http.Transport:
		t.MaxResponseHeaderBytes = maxHeader
		dial := t.DialContext
		t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err == nil && metadataAddress(conn.RemoteAddr()) {
				conn.Close()
				return nil, fmt.Errorf("%s is where a cloud tells this machine its credentials: no registry is asked there", address)
			}
			return conn, err
		}
	}
	return registryTransport{next}
}

// metadataAddress says that somebody who lets this node ask it wants to know its credentials.
// Pure.
func metadataAddress(a net.Addr) bool {
	to, err := netip.ParseAddrPort(a.String())
	return err == nil && slices.Contains(metadataAddresses, to.Addr().Unmap().WithZone(""))
}

// A registryTransport bounds the answers of registries, and of those whom they name as
// givers of tokens: containerd reads these to their end, into memory.
type registryTransport struct{ next http.RoundTripper }

func (t registryTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	const encoding = "Accept-Encoding"
	// Content alone is asked for so, and has the size of its descriptor.
	if r.Header.Get(encoding) != "" {
		r = r.Clone(r.Context())
		r.Header.Set(encoding, "gzip")
		res, err := t.next.RoundTrip(r)
		return unpackable(res, err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), answerTime)
	res, err := unpackable(t.next.RoundTrip(r.WithContext(ctx)))
	if err != nil {
		cancel()
		return nil, err
	}
	res.Body = &answerBody{res.Body, cancel, maxManifest}
	return res, nil
}

// unpackable refuses content that is packed by zstd: its sender chooses how much memory the
// receiver takes, half a gigabyte at most.
func unpackable(res *http.Response, err error) (*http.Response, error) {
	if err == nil && strings.Contains(strings.ToLower(res.Header.Get("Content-Encoding")), "zstd") {
		res.Body.Close()
		return nil, fmt.Errorf("%s answers in encoding zstd, which was not asked for", res.Request.URL.Host)
	}
	return res, err
}

// An answerBody is an answer that is read as a whole.
type answerBody struct {
	io.ReadCloser
	cancel context.CancelFunc
	left   int64 // bytes that it may still have
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("answer of a registry is larger than %d bytes", maxManifest)
	}
	return n, err
}

func (b *answerBody) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
