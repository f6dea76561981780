package containerruntime

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"knarr/internal/run"
)

// digestHeader is where registries say which content they answer with.
const digestHeader = "Docker-Content-Digest"

// agreed is a client by which an image's tag stands for what the nodes agree that it does. A
// name with a digest needs no such agreement.
func agreed(ctx context.Context, full string, peers []string, client *http.Client) (*http.Client, error) {
	ref, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return nil, err
	}
	tagged, ok := ref.(reference.Tagged)
	if _, known := ref.(reference.Digested); known || !ok {
		return client, nil
	}
	path := "/v2/" + reference.Path(ref) + "/manifests/" + tagged.Tag()
	digests := make([]digest.Digest, len(peers))
	run.Each("tags of other nodes' images", len(peers), len(peers), func(n int) error {
		digests[n] = ask(ctx, "https://"+peers[n]+path+"?ns="+url.QueryEscape(reference.Domain(ref)), client)
		return nil
	})
	is, err := agreement(full, digests)
	if err != nil {
		return nil, err
	}
	next := client.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	own := *client
	own.Transport = agreedTag{next, path, is}
	return &own, nil
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

// agreedTag takes an answer to what a tag stands for only if it is the agreed one.
type agreedTag struct {
	http.RoundTripper
	path string
	is   digest.Digest
}

func (a agreedTag) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := a.RoundTripper.RoundTrip(r)
	if err == nil && strings.HasSuffix(r.URL.Path, a.path) && res.Header.Get(digestHeader) != a.is.String() {
		res.Body.Close()
		return nil, fmt.Errorf("%s has another image under this tag than was agreed on", r.URL.Host)
	}
	return res, err
}
