package webhook

import (
	"bytes"
	"encoding/json"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	reviewv1 "k8s.io/api/admission/v1"
	reviewv1beta1 "k8s.io/api/admission/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"knarr/controlplane/apiserver/admission/match"
)

// Whatever a webhook answers, it is an answer with a patch that applies or not,
// a refusal, or an error.
func FuzzAnswer(f *testing.F) {
	f.Add(true, true, []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2EiLCJ2YWx1ZSI6MX1d"}}`))
	f.Add(true, true, []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJyZXBsYWNlIiwicGF0aCI6IiIsInZhbHVlIjpudWxsfV0="}}`))
	f.Add(true, false, []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"u","allowed":false,"status":{"code":-1,"message":"no","status":"Success"},"warnings":["x"],"auditAnnotations":{"a":"b"}}}`))
	f.Add(false, true, []byte(`{"response":{"allowed":true,"patch":"W10="}}`))
	f.Add(true, true, []byte(`{"response":null}`))
	f.Fuzz(func(t *testing.T, v1, mutating bool, data []byte) {
		var answer runtime.Object = &reviewv1beta1.AdmissionReview{}
		if v1 {
			answer = &reviewv1.AdmissionReview{}
		}
		if json.Unmarshal(data, answer) != nil {
			return
		}
		r, err := verify("u", mutating, answer)
		if err != nil {
			return
		}
		if !r.Allowed {
			if err := refusal("h", r.Result); err == nil {
				t.Fatal("a refusal that is none")
			}
			return
		}
		if len(r.Patch) == 0 {
			return
		}
		if r.PatchType == nil || !mutating {
			t.Fatalf("a patch without type, or of a webhook that may not: %s", r.Patch)
		}
		patch, err := jsonpatch.DecodePatch(r.Patch)
		if err != nil || bytes.Count(r.Patch, []byte("copy")) > 8 {
			return
		}
		obj := &unstructured.Unstructured{Object: map[string]any{"kind": "K", "apiVersion": "g/v1", "metadata": map[string]any{"name": "n"}, "a": []any{int64(1), "b"}}}
		out, err := apply(patch, &match.Request{}, match.Target{}, obj)
		if err == nil && out.(*unstructured.Unstructured).Object == nil {
			t.Fatalf("%s makes nothing", r.Patch)
		}
	})
}
