package endpoints

import (
	"encoding/json"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCreateWithResourceVersion: a dry run makes nothing of a resourceVersion that
// is set, as upstream's never reaches the store, which refuses it.
func TestCreateWithResourceVersion(t *testing.T) {
	w := newWorld(t)
	const path, body = "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"c","resourceVersion":"7"},"data":{"a":"b"}}`
	code, text, _ := w.do("POST", path+"?dryRun=All", "application/json", body)
	var got struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal([]byte(text), &got); err != nil || code != http.StatusCreated || got.Metadata.Name != "c" || got.Metadata.ResourceVersion != "7" {
		t.Errorf("dry run: %d %s", code, text)
	}
	code, text, _ = w.do("POST", path, "application/json", body)
	const want = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"resourceVersion should not be set on objects to be created","code":500}`
	if code != http.StatusInternalServerError || text != want && text != want+"\n" {
		t.Errorf("%d %s\nwant %s", code, text, want)
	}
	if code, text, _ := w.do("GET", path+"/c", "", ""); code != http.StatusNotFound {
		t.Errorf("it was created: %d %s", code, text)
	}
}
