package apiserver

import (
	"encoding/json"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// What a review's selectors are understood as is a selector, whatever was asked;
// it is all of what was asked when nothing is said to be missing.
func FuzzReviewSelectors(f *testing.F) {
	for _, seed := range []string{
		`{"fieldSelector":{"rawSelector":"metadata.name=a,spec.nodeName!=b\\,c"},"labelSelector":{"rawSelector":"a in (b,c),!d,e!=f,g>1"}}`,
		`{"fieldSelector":{"requirements":[{"key":"a","operator":"In","values":["b"]},{"key":"a,b=c","operator":"NotIn","values":["\\=,"]}]}}`,
		`{"labelSelector":{"requirements":[{"key":"a/b","operator":"In","values":["b","c",""]},{"key":"c","operator":"Exists"},{"key":"d","operator":"DoesNotExist","values":["x"]}]}}`,
		`{"fieldSelector":{"requirements":[{"key":"","operator":"Exists"}]},"labelSelector":{"requirements":[{"key":" ","operator":"Gt","values":["1"]}]}}`,
		`{"labelSelector":{"rawSelector":"a notin (),b","requirements":[]},"fieldSelector":{"rawSelector":"="}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r authorizationv1.ResourceAttributes
		if json.Unmarshal(data, &r) != nil {
			return
		}
		raw, err := fieldSelector(r.FieldSelector)
		of, broken := fields.ParseSelector(raw)
		if broken != nil {
			t.Fatalf("fields %q: %v", raw, broken)
		}
		if l := r.FieldSelector; err == nil && l != nil && len(l.Requirements) > 0 && len(of.Requirements()) != len(l.Requirements) {
			t.Fatalf("fields %v became %q", l.Requirements, raw)
		}
		raw, err = labelSelector(r.LabelSelector)
		with, broken := labels.Parse(raw)
		if broken != nil {
			t.Fatalf("labels %q: %v", raw, broken)
		}
		if l := r.LabelSelector; err == nil && l != nil && len(l.Requirements) > 0 {
			if reqs, _ := with.Requirements(); len(reqs) != len(l.Requirements) {
				t.Fatalf("labels %v became %q", l.Requirements, raw)
			}
		}
	})
}
