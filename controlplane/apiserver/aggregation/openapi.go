package aggregation

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"knarr/controlplane/apiserver/endpoints"
)

// How long a server's OpenAPI is taken to be what it was, and at most after it
// could not be read time and again: upstream's figures.
const (
	refetch   = time.Minute
	giveUpFor = time.Hour
)

// A source is a document that a server is asked for now and then.
type source struct {
	tag  string // of what it gave last
	due  time.Time
	wait time.Duration // after a failure
}

// recordResult records the result of a request to the server.
func (s *source) recordResult(tag string, err error) error {
	if err == nil {
		s.tag, s.wait = tag, 0
		s.due = time.Now().Add(refetch)
		return nil
	}
	s.wait = min(max(s.wait*2, refetch), giveUpFor)
	s.due = time.Now().Add(s.wait)
	return err
}

// schemas are what a server's OpenAPI says of one group version.
type schemas struct {
	index, v2 source
	document  string // where its OpenAPI v3 is, with its hash; "" for none
	onlyV2    bool
	merged    endpoints.RemoteSchemas
	converted *endpoints.RemoteDocument
}

// learn asks a server for its OpenAPI when the last answer is too old, and says
// whether there is news.
func (a *Aggregator) learn(ctx context.Context, tr http.RoundTripper, base string, s *apiregistrationv1.APIService) (news bool, err error) {
	a.mu.Lock()
	old := a.schemas[s.Name]
	a.mu.Unlock()
	next := old
	now := time.Now()
	if !next.onlyV2 && !now.Before(next.index.due) {
		err = next.learnIndex(ctx, tr, base, s)
	}
	if !now.Before(next.v2.due) {
		err = errors.Join(err, next.learnV2(ctx, tr, base, s))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.schemas[s.Name] = next
	return next.document != old.document || next.merged != old.merged || next.converted != old.converted, err
}

// retryNow has a server that was away asked at once when it is back.
func (a *Aggregator) retryNow(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s, ok := a.schemas[name]; ok {
		s.index.due, s.index.wait, s.v2.due, s.v2.wait = time.Time{}, 0, time.Time{}, 0
		a.schemas[name] = s
	}
}

func (n *schemas) learnIndex(ctx context.Context, tr http.RoundTripper, base string, s *apiregistrationv1.APIService) error {
	status, tag, body, err := fetch(ctx, tr, base+"/openapi/v3", n.index.tag)
	switch {
	case err != nil:
	case status == http.StatusNotModified:
	case status == http.StatusNotFound:
		n.onlyV2, n.v2 = true, source{}
	case status == http.StatusOK:
		var index struct {
			Paths map[string]struct {
				URL string `json:"serverRelativeURL"`
			} `json:"paths"`
		}
		if err = json.Unmarshal(body, &index); err == nil {
			n.document = index.Paths[documentOf(s)].URL
		}
	default:
		err = fmt.Errorf("could not get list of group versions for APIService: status %d", status)
	}
	return n.index.recordResult(tag, err)
}

func (n *schemas) learnV2(ctx context.Context, tr http.RoundTripper, base string, s *apiregistrationv1.APIService) error {
	status, tag, body, err := fetch(ctx, tr, base+"/openapi/v2", n.v2.tag)
	switch {
	case err != nil:
	case status == http.StatusNotModified:
	case status == http.StatusNotFound:
		n.merged, n.converted = endpoints.RemoteSchemas{}, nil
	case status == http.StatusOK:
		id := tag
		if id == "" {
			id = fmt.Sprintf("%X", sha512.Sum512(body))
		}
		if n.merged.Tag == id && (n.converted != nil || !n.onlyV2) {
			break
		}
		err = n.take(s, id, body)
	default:
		err = fmt.Errorf("failed to retrieve openAPI spec, http error: %d", status)
	}
	return n.v2.recordResult(tag, err)
}

// take reads a document. The libraries that turn it into others panic where a
// part is missing that they take for granted.
func (n *schemas) take(s *apiregistrationv1.APIService, id string, body []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
		if err != nil {
			err = fmt.Errorf("read OpenAPI of %s: %w", s.Name, err)
		}
	}()
	all := &spec.Swagger{}
	if err := all.UnmarshalJSON(body); err != nil {
		return err
	}
	if err := endless(all); err != nil {
		return err
	}
	n.merged = endpoints.RemoteSchemas{Tag: id, Schemas: aggregator.FilterSpecByPathsWithoutSideEffects(all, []string{"/apis/" + s.Spec.Group + "/" + s.Spec.Version + "/"})}
	if n.onlyV2 {
		n.converted, err = convert(all)
	}
	return err
}

// endless refuses parameters that refer to parameters: the library that walks
// along references does not notice that it goes round in circles.
func endless(all *spec.Swagger) error {
	for name, p := range all.Parameters {
		data, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if bytes.Contains(data, []byte(`"$ref":"#/parameters/`)) {
			return fmt.Errorf("parameter %q refers to a parameter", name)
		}
	}
	return nil
}

// convert makes OpenAPI v3 of a server's v2. Not all that v3 can say is in v2.
func convert(v2 *spec.Swagger) (*endpoints.RemoteDocument, error) {
	data, err := json.Marshal(openapiconv.ConvertV2ToV3(v2))
	if err != nil {
		return nil, fmt.Errorf("convert OpenAPI: %w", err)
	}
	return &endpoints.RemoteDocument{JSON: data, Hash: fmt.Sprintf("%X", sha512.Sum512(data))}, nil
}

// documentOf is how a group version's document is called in an index.
func documentOf(s *apiregistrationv1.APIService) string {
	return "apis/" + s.Spec.Group + "/" + s.Spec.Version
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
	newTag = strings.TrimSpace(resp.Header.Get("Etag"))
	if resp.StatusCode == http.StatusNotModified {
		newTag = tag
	}
	return resp.StatusCode, newTag, body, err
}
