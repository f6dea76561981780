package extension

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// hook is a definition converted by handler, which answers over TLS.
func hook(t *testing.T, review string, handler http.HandlerFunc) *converter {
	srv := httptest.NewTLSServer(handler)
	t.Cleanup(srv.Close)
	crd := &customResourceDefinition{}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{ConversionReviewVersions: []string{"v9", review}, ClientConfig: &apiextensionsv1.WebhookClientConfig{
			URL: &srv.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}),
		}}}
	c := newConverter(crd, nil)
	t.Cleanup(c.close)
	return c
}

func TestConvert(t *testing.T) {
	in := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Foo", "hostPort": "a:1",
			"metadata": map[string]any{"name": "x", "uid": "1", "resourceVersion": "5", "labels": map[string]any{"a": "b"}},
		}}
	}
	const good = `{"apiVersion":"example.com/v2","kind":"Foo","host":"a","metadata":{"name":"x","uid":"1","resourceVersion":"9","labels":{"c":"d"}}}`
	for _, c := range []struct{ name, review, objects, result, want string }{
		{"good", "v1", good, `{"status":"Success"}`, `{"apiVersion":"example.com/v2","host":"a","kind":"Foo","metadata":{"labels":{"c":"d"},"name":"x","resourceVersion":"5","uid":"1"}}`},
		{"v1beta1", "v1beta1", good, `{"status":"Success"}`, `{"apiVersion":"example.com/v2","host":"a","kind":"Foo","metadata":{"labels":{"c":"d"},"name":"x","resourceVersion":"5","uid":"1"}}`},
		{"refused", "v1", ``, `{"status":"Failed","message":"no way"}`, `conversion webhook for example.com/v1, Kind=Foo failed: no way`},
		{"refused without words", "v1", ``, `{"status":"Failed"}`, `conversion webhook for example.com/v1, Kind=Foo failed: response.result.status was 'Failed', not 'Success'`},
		{"none", "v1", ``, `{"status":"Success"}`, `conversion webhook for example.com/v1, Kind=Foo returned 0 objects, expected 1`},
		{"wrong version", "v1", strings.Replace(good, "v2", "v3", 1), `{"status":"Success"}`, `conversion webhook for example.com/v1, Kind=Foo returned invalid object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v3)`},
		{"wrong kind", "v1", strings.Replace(good, "Foo", "Bar", 1), `{"status":"Success"}`, `conversion webhook for example.com/v1, Kind=Foo returned invalid object at index 0: invalid kind (expected Foo, received Bar)`},
		{"other name", "v1", strings.Replace(good, `"x"`, `"y"`, 1), `{"status":"Success"}`, `conversion webhook for example.com/v1, Kind=Foo returned invalid object: must have the same name: x != y`},
		{"other uid", "v1", strings.Replace(good, `"1"`, `"2"`, 1), `{"status":"Success"}`, `conversion webhook for example.com/v1, Kind=Foo returned invalid object: must have the same UID: 1 != 2`},
		{"bad label", "v1", strings.Replace(good, `"d"`, `"-"`, 1), `{"status":"Success"}`, `conversion webhook for example.com/v1, Kind=Foo returned invalid metadata: metadata.labels: Invalid value: "-": `},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := hook(t, c.review, func(w http.ResponseWriter, r *http.Request) {
				var q review
				if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Request.Desired != "example.com/v2" || q.APIVersion != "apiextensions.k8s.io/"+c.review ||
					len(q.Request.Objects) != 1 || q.Request.Objects[0]["hostPort"] != "a:1" {
					t.Errorf("asked %v %+v", err, q)
				}
				q.Response = &reviewResponse{UID: q.Request.UID}
				if c.objects != "" {
					q.Response.Objects = []json.RawMessage{json.RawMessage(c.objects)}
				}
				if err := json.Unmarshal([]byte(c.result), &q.Response.Result); err != nil {
					t.Error(err)
				}
				q.Request = nil
				if err := json.NewEncoder(w).Encode(q); err != nil {
					t.Error(err)
				}
			})
			out, err := h.convert(in(), schema.GroupVersion{Group: "example.com", Version: "v2"})
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				b, err := json.Marshal(out.Object)
				if err != nil {
					t.Fatal(err)
				}
				got = string(b)
			}
			if !strings.HasPrefix(got, c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// A webhook may not send the API server elsewhere (CVE-2022-3172), nor answer
// without end.
func TestConvertIsGuarded(t *testing.T) {
	reached := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer other.Close()
	h := hook(t, "v1", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	if _, err := h.post([]byte("{}")); err == nil || reached {
		t.Errorf("redirected: %v, reached %v", err, reached)
	}
	h = hook(t, "v1", func(w http.ResponseWriter, r *http.Request) {
		chunk := make([]byte, 1<<20)
		for range webhookBytes>>20 + 1 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	if _, err := h.post([]byte("{}")); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("endless answer: %v", err)
	}
}
