package registries

import (
	"context"
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// Renamed are the hosts that containerd asks for a repository, as it has read of them in a file
// of Hosts, of which mirrors are asked by the name that it has there.
func (c Config) Renamed(registry, repository string, hosts []docker.RegistryHost) []docker.RegistryHost {
	m := c.mirror(registry)
	to := m.rename(repository)
	if to == repository {
		return hosts
	}
	hosts = slices.Clone(hosts)
	mirrors, _ := m.endpoints()
	for i := range min(len(mirrors), len(hosts)) { // the registry itself, if it is asked, is behind them
		hosts[i] = renamed(hosts[i], repository, to)
	}
	return hosts
}

// rename is the name of a repository in a mirror, by the first expression, in the order of their
// text, that matches it. Pure.
func (m Mirror) rename(repository string) string {
	for _, from := range slices.Sorted(maps.Keys(m.Rewrites)) {
		x, err := regexp.Compile(from)
		if err == nil && x.MatchString(repository) { // Parse refuses what is no expression
			return x.ReplaceAllString(repository, m.Rewrites[from])
		}
	}
	return repository
}

// renamed is a host that is asked for another repository than containerd means. Its authorizer
// keeps its own client, since who gives tokens has no repositories.
func renamed(h docker.RegistryHost, from, to string) docker.RegistryHost {
	client := *h.Client // others may have the same one
	client.Transport = renamedPaths{client.Transport, path.Join("/", h.Path, from) + "/", path.Join("/", h.Path, to) + "/"}
	h.Client = &client
	h.Authorizer = renamedScope{h.Authorizer, "repository:" + from + ":", "repository:" + to + ":"}
	return h
}

// renamedPaths are those of a repository, at the beginning of a URL's path.
type renamedPaths struct {
	next     http.RoundTripper
	from, to string
}

func (p renamedPaths) RoundTrip(r *http.Request) (*http.Response, error) {
	rest, ok := strings.CutPrefix(r.URL.Path, p.from)
	if !ok || r.Response != nil { // a redirect has the names of who sent it
		return p.next.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	r.URL.Path, r.URL.RawPath = p.to+rest, ""
	res, err := p.next.RoundTrip(r)
	if err != nil {
		return nil, err // as it is: containerd asks it whether to try again
	}
	if at, err := res.Location(); err == nil { // by the URL that was asked, which the client does not know
		res.Header.Set("Location", at.String())
	}
	return res, nil
}

// A renamedScope asks for tokens for what the mirror is asked for.
type renamedScope struct {
	docker.Authorizer
	from, to string
}

func (a renamedScope) Authorize(ctx context.Context, r *http.Request) error {
	return a.Authorizer.Authorize(a.scoped(ctx), r)
}

func (a renamedScope) AddResponses(ctx context.Context, responses []*http.Response) error {
	return a.Authorizer.AddResponses(a.scoped(ctx), responses)
}

// scoped is a context with the scopes of ctx by their other names. containerd's can only be added
// to, and a registry may refuse a token for a repository that it does not have.
func (a renamedScope) scoped(ctx context.Context) context.Context {
	scopes := docker.GetTokenScopes(ctx, nil)
	ctx = endOnly{ctx}
	for _, s := range scopes {
		if rest, ok := strings.CutPrefix(s, a.from); ok {
			s = a.to + rest
		}
		ctx = docker.WithScope(ctx, s)
	}
	return ctx
}

// An endOnly context ends with another one, and has nothing else of it.
type endOnly struct{ context.Context }

func (endOnly) Value(any) any { return nil }
