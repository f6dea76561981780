package containerruntime

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"knarr/internal/run"
)

// digestHeader is where registries say which content they answer with.
const digestHeader = "Docker-Content-Digest"

// agreed is what the nodes agree that an image's tag stands for, "" for a name with a digest,
// which needs no such agreement.
func agreed(ctx context.Context, full string, peers []string, client *http.Client) (digest.Digest, error) {
	ref, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return "", err
	}
	tagged, ok := ref.(reference.Tagged)
	if _, known := ref.(reference.Digested); known || !ok {
		return "", nil
	}
	path := "/v2/" + reference.Path(ref) + "/manifests/" + tagged.Tag() + "?ns=" + url.QueryEscape(reference.Domain(ref))
	digests := make([]digest.Digest, len(peers))
	run.Each("tags of other nodes' images", len(peers), len(peers), func(n int) error {
		digests[n] = ask(ctx, "https://"+peers[n]+path, client)
		return nil
	})
	return agreement(full, digests)
}

// ask is what a node says that a tag stands for, "" if it says nothing.
func ask(ctx context.Context, url string, client *http.Client) digest.Digest {
	r, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return ""
	}
	res, err := client.Do(r)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	d, err := digest.Parse(res.Header.Get(digestHeader))
	if err != nil || res.StatusCode != http.StatusOK {
		return ""
	}
	return d
}

// agreement is what all nodes say that have an image, if there are several: a node must not
// decide alone what others run under a name. Pure.
func agreement(image string, digests []digest.Digest) (is digest.Digest, err error) {
	have := 0
	for _, d := range digests {
		switch {
		case d == "":
			continue
		case is != "" && d != is:
			return "", fmt.Errorf("other nodes do not agree what image %s is: %s or %s", image, is, d)
		}
		is, have = d, have+1
	}
	if have < 2 {
		return "", fmt.Errorf("%d other nodes have image %s; what its tag stands for is believed if two of them say the same", have, image)
	}
	return is, nil
}

// An agreedTag resolves the name of an image to the agreed digest. Nodes are asked for that
// digest, never again for the tag: where the length of an answer to a tag is not said,
// containerd believes the digest of whatever manifest comes, not the one in the header.
type agreedTag struct {
	remotes.Resolver
	is digest.Digest
}

func (a agreedTag) Resolve(ctx context.Context, full string) (name string, d ocispec.Descriptor, err error) {
	ref, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return "", d, err
	}
	_, d, err = a.Resolver.Resolve(ctx, ref.Name()+"@"+a.is.String())
	if err == nil && d.Digest != a.is {
		err = fmt.Errorf("another image than was agreed on, %s: %s", a.is, d.Digest)
	}
	return full, d, err
}
