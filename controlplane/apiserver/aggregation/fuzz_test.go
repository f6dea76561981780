package aggregation

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// always answers with the same.
type always []byte

func (a always) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(a))}, nil
}

// What other servers say of themselves is taken over or refused: their lists of
// resources, and their OpenAPI.
func FuzzOtherServer(f *testing.F) {
	f.Add([]byte(`{"kind":"APIResourceList","groupVersion":"g/v1","resources":[{"name":"a/status","kind":"A"},{"name":"a","namespaced":true,"verbs":["get"],"kind":"A","group":"h"}]}`))
	f.Add([]byte(`{"paths":{"apis/g/v1":{"serverRelativeURL":"/openapi/v3/apis/g/v1?hash=1"}}}`))
	f.Add([]byte(`{"swagger":"2.0","paths":{"/apis/g/v1/a":{"get":{"parameters":[{"in":"body","name":"b","schema":{"$ref":"#/definitions/A"}}],"responses":{"200":{"schema":{"$ref":"#/definitions/B"}}}}}},` +
		`"definitions":{"A":{"properties":{"b":{"$ref":"#/definitions/B"}}},"B":{"type":"array","items":{"$ref":"#/definitions/A"},"x-kubernetes-group-version-kind":[{"group":"g"}]}}}`))
	f.Add([]byte(`{"paths":{"/apis/g/v1/":{"parameters":[{"$ref":"#/parameters/p"}]}},"parameters":{"p":{"$ref":"#/parameters/p"}},"definitions":{"A":{"allOf":[{"$ref":"#/definitions/A"}],"additionalProperties":false}}}`))
	s := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.g"}, Spec: apiregistrationv1.APIServiceSpec{Group: "g", Version: "v1"}}
	f.Fuzz(func(t *testing.T, body []byte) {
		var list metav1.APIResourceList
		if json.Unmarshal(body, &list) == nil {
			if d := versionDiscovery("v1", &list); len(d.Resources) > len(list.APIResources) {
				t.Fatalf("%q became %v", body, d)
			}
		}
		var n schemas
		_ = n.learnIndex(t.Context(), always(body), "https://a", s)
		n.onlyV2 = true
		if n.learnV2(t.Context(), always(body), "https://a", s) != nil {
			return
		}
		if !json.Valid(n.converted.JSON) {
			t.Fatalf("%q became %q", body, n.converted.JSON)
		}
		own := &spec.Swagger{SwaggerProps: spec.SwaggerProps{Paths: &spec.Paths{}, Definitions: spec.Definitions{"A": {}}}}
		if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(own, n.merged.Schemas); err != nil {
			t.Skip(err)
		}
	})
}
