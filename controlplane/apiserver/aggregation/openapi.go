package aggregation

import (
	"context"
	"crypto/sha512"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"knarr/controlplane/apiserver/endpoints"
)

// refetch is how long a server's OpenAPI v2 is taken to be what it was,
// upstream's figure.
const refetch = time.Minute

// schemas are what a server's OpenAPI v2 says of one group version.
type schemas struct {
	endpoints.RemoteSchemas
	own   bool // the tag was made here, for the server gives none
	asked time.Time
}

// learn asks a server for its OpenAPI v2 when the last answer is too old, and
// says whether there is news.
func (a *Aggregator) learn(ctx context.Context, tr http.RoundTripper, base string, s *apiregistrationv1.APIService) (news bool, err error) {
	a.mu.Lock()
	old := a.schemas[s.Name]
	a.mu.Unlock()
	if time.Since(old.asked) < refetch {
		return false, nil
	}
	tag := old.Tag
	if old.own {
		tag = ""
	}
	status, newTag, body, err := fetch(ctx, tr, base+"/openapi/v2", tag)
	next := schemas{asked: time.Now()}
	switch {
	case err != nil:
		return false, err
	case status == http.StatusNotModified:
		next.RemoteSchemas, next.own = old.RemoteSchemas, old.own
	case status == http.StatusNotFound:
	case status == http.StatusOK:
		if newTag == "" {
			next.own, newTag = true, fmt.Sprintf("%X", sha512.Sum512(body))
		}
		if next.Tag = newTag; newTag == old.Tag {
			next.Schemas = old.Schemas
			break
		}
		all := &spec.Swagger{}
		if err := all.UnmarshalJSON(body); err != nil {
			return false, fmt.Errorf("read OpenAPI of %s: %w", s.Name, err)
		}
		next.Schemas = aggregator.FilterSpecByPathsWithoutSideEffects(all, []string{"/apis/" + s.Spec.Group + "/" + s.Spec.Version + "/"})
	default:
		return false, fmt.Errorf("failed to retrieve openAPI spec, http error: %d", status)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.schemas[s.Name] = next
	return next.Tag != old.Tag, nil
}

// fetch gets a document that is not the one that tag names.
func fetch(ctx context.Context, tr http.RoundTripper, url, tag string) (status int, newTag string, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", nil, err
	}
	req.Header.Set("Accept", "application/json")
	if tag != "" {
		req.Header.Set("If-None-Match", tag)
	}
	transport.SetAuthProxyHeaders(req, "system:aggregator", "", nil, nil)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxDocument))
	return resp.StatusCode, strings.TrimSpace(resp.Header.Get("Etag")), body, err
}
