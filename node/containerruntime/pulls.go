package containerruntime

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Pull is an image that is being fetched.
type Pull struct {
	// Repository is the image's name without tag and digest.
	Repository string
	// Digest is that of the manifest.
	Digest string
	// Done of Total bytes are there.
	Done, Total int64
	// Since is when the first of the parts began that are under way.
	Since time.Time
}

// sourceLabel begins the labels that say from which repository of which registry content is.
const sourceLabel = "containerd.io/distribution.source."

// Pulls are the images whose parts are being fetched. One that is found here is known by
// its manifest, so that what is before that, and what is after the last part, is not seen.
func (i *Images) Pulls(ctx context.Context) ([]Pull, error) {
	ctx = namespaces.WithNamespace(ctx, imageNamespace)
	store := i.client.ContentStore()
	statuses, err := store.ListStatuses(ctx)
	if err != nil {
		return nil, fmt.Errorf("list what is being fetched: %w", err)
	}
	parts := map[digest.Digest]content.Status{}
	for _, s := range statuses {
		if at := strings.Index(s.Ref, "sha256:"); at >= 0 {
			parts[digest.Digest(s.Ref[at:])] = s
		}
	}
	if len(parts) == 0 {
		return nil, nil
	}
	var pulls []Pull
	err = store.Walk(ctx, func(info content.Info) error {
		if info.Size > maxManifest {
			return nil
		}
		p, err := pullOf(ctx, store, info, parts)
		if err == nil && p.Total > 0 {
			pulls = append(pulls, p)
		}
		return nil // one manifest that cannot be read leaves the others
	}, `labels."containerd.io/gc.ref.content.config"`)
	if err != nil {
		return nil, fmt.Errorf("list manifests: %w", err)
	}
	slices.SortFunc(pulls, func(a, b Pull) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.Digest, b.Digest))
	})
	return pulls, nil
}

// pullOf measures the parts of a manifest. Nothing is to be fetched in all if none of
// them is under way.
func pullOf(ctx context.Context, store content.Store, info content.Info, parts map[digest.Digest]content.Status) (p Pull, err error) {
	r, err := store.ReaderAt(ctx, ocispec.Descriptor{Digest: info.Digest, Size: info.Size})
	if err != nil {
		return p, err
	}
	defer r.Close()
	var m ocispec.Manifest
	if err := json.NewDecoder(io.NewSectionReader(r, 0, info.Size)).Decode(&m); err != nil {
		return p, err
	}
	if len(m.Layers) > maxLayers { // a look at the store for each; versions before took more
		return p, nil
	}
	all := append(slices.Clone(m.Layers), m.Config)
	if !slices.ContainsFunc(all, func(d ocispec.Descriptor) bool { _, ok := parts[d.Digest]; return ok }) {
		return p, nil
	}
	p = Pull{Repository: repositoryOf(info.Labels), Digest: info.Digest.String()}
	for _, d := range all {
		size := max(d.Size, 0)
		p.Total += size
		s, underway := parts[d.Digest]
		switch {
		case underway:
			p.Done += min(s.Offset, size)
			if p.Since.IsZero() || s.StartedAt.Before(p.Since) {
				p.Since = s.StartedAt
			}
		default:
			if _, err := store.Info(ctx, d.Digest); err == nil {
				p.Done += size
			}
		}
	}
	return p, nil
}

// repositoryOf is the repository that a manifest was fetched from, the first of several.
func repositoryOf(labels map[string]string) string {
	var all []string
	for l, repositories := range labels {
		if registry, ok := strings.CutPrefix(l, sourceLabel); ok {
			for r := range strings.SplitSeq(repositories, ",") {
				all = append(all, registry+"/"+r)
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	return slices.Min(all)
}

// PullOf is how much of an image is there while it is being fetched; nothing if it is
// not, or if it is not known yet.
func (i *Images) PullOf(ctx context.Context, name string) (p Pull, found bool, err error) {
	pulls, err := i.Pulls(ctx)
	if err != nil {
		return p, false, err
	}
	p, found = PullIn(pulls, name)
	return p, found, nil
}

// PullIn is PullOf by what Pulls has said. Pure.
func PullIn(pulls []Pull, name string) (p Pull, found bool) {
	full := fullName(name)
	if full == "" {
		full = fullName(name + ":latest")
	}
	for _, one := range pulls {
		if rest, ok := strings.CutPrefix(full, one.Repository); ok && one.Repository != "" && strings.ContainsAny(rest[:min(1, len(rest))], ":@") {
			p, found = one, true
		}
	}
	return p, found
}
