package endpoints

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/controlplane/apiserver/watchcache"
)

// lines opens a watch and returns a function that reads one event.
func (w *world) lines(path, accept string) func() map[string]any {
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", w.url+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { resp.Body.Close() })
	r := bufio.NewReader(resp.Body)
	return func() map[string]any {
		w.t.Helper()
		line, err := r.ReadString('\n')
		if err != nil {
			w.t.Fatalf("%v after %q", err, line)
		}
		var event map[string]any
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			w.t.Fatal(err)
		}
		return event
	}
}

func at(v any, path string) any {
	for part := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		v = m[part]
	}
	return v
}

func (w *world) configMap(name string) {
	w.t.Helper()
	if _, err := w.client.CoreV1().ConfigMaps("default").Create(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func TestWatchViews(t *testing.T) {
	w := newWholeWorld(t)
	w.configMap("a")
	table := w.lines("/api/v1/namespaces/default/configmaps?watch=1", "application/json;as=Table;v=v1;g=meta.k8s.io")
	partial := w.lines("/api/v1/watch/namespaces/default/configmaps", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
	first := table()
	if at(first, "object.kind") != "Table" || at(first, "object.columnDefinitions") == nil {
		t.Errorf("first table: %v", first)
	}
	if e := partial(); at(e, "object.kind") != "PartialObjectMetadata" || at(e, "object.metadata.name") != "a" || at(e, "object.data") != nil {
		t.Errorf("partial: %v", e)
	}
	w.configMap("b")
	if e := table(); at(e, "object.columnDefinitions") != nil || e["type"] != "ADDED" {
		t.Errorf("second table: %v", e)
	}
}

func TestWatchListEndsInABookmark(t *testing.T) {
	w := newWholeWorld(t)
	w.configMap("a")
	next := w.lines("/api/v1/configmaps?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "application/json")
	if e := next(); e["type"] != "ADDED" {
		t.Errorf("state: %v", e)
	}
	e := next()
	annotations, _ := at(e, "object.metadata.annotations").(map[string]any)
	if e["type"] != "BOOKMARK" || annotations["k8s.io/initial-events-end"] != "true" || at(e, "object.kind") != "ConfigMap" {
		t.Errorf("end of state: %v", e)
	}
	w.configMap("b")
	if e := next(); e["type"] != "ADDED" || at(e, "object.metadata.name") != "b" {
		t.Errorf("change: %v", e)
	}
}

func TestListPagesAndViews(t *testing.T) {
	w := newWholeWorld(t)
	for _, n := range []string{"a", "b", "c"} {
		w.configMap(n)
	}
	var page corev1.ConfigMapList
	_, body, _ := w.do("GET", "/api/v1/configmaps?limit=2", "", "")
	if err := json.Unmarshal([]byte(body), &page); err != nil || len(page.Items) != 2 || page.Continue == "" || *page.RemainingItemCount != 1 || page.Kind != "ConfigMapList" {
		t.Fatalf("%s, %v", body, err)
	}
	_, body, _ = w.do("GET", "/api/v1/configmaps?limit=2&continue="+page.Continue, "", "")
	page = corev1.ConfigMapList{}
	if err := json.Unmarshal([]byte(body), &page); err != nil || len(page.Items) != 1 || page.Items[0].Name != "c" || page.Continue != "" {
		t.Fatalf("%s, %v", body, err)
	}
	_, body, _ = w.do("GET", "/api/v1/configmaps", "", "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	if !strings.HasPrefix(body, `{"kind":"Table","apiVersion":"meta.k8s.io/v1"`) || strings.Count(body, `"cells"`) != 3 {
		t.Errorf("table: %s", body)
	}
	_, body, _ = w.do("GET", "/api/v1/configmaps", "", "", "Accept", "application/yaml")
	if !strings.HasPrefix(body, "apiVersion: v1\n") || !strings.Contains(body, "kind: ConfigMapList") {
		t.Errorf("yaml: %s", body)
	}
	if code, _, _ := w.do("GET", "/api/v1/configmaps", "", "", "Accept", "text/html"); code != 406 {
		t.Errorf("html: %d", code)
	}
}

// Large objects are sent from bytes that others share, between small ones.
func TestWatchOfLargeObjects(t *testing.T) {
	w := newWholeWorld(t)
	ctx := t.Context()
	maps := w.client.CoreV1().ConfigMaps("default")
	large := strings.Repeat("x", 2*watchcache.LargeSize)
	w.configMap("a")
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Data: map[string]string{"k": large}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.configMap("c")
	json := w.lines("/api/v1/configmaps?watch=1", "application/json")
	client, err := kubernetes.NewForConfig(&rest.Config{Host: w.url, ContentConfig: rest.ContentConfig{AcceptContentTypes: typeProtobuf, ContentType: typeProtobuf}})
	if err != nil {
		t.Fatal(err)
	}
	proto, err := client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer proto.Stop()
	see := func(typ, name, data string) {
		t.Helper()
		if e := json(); e["type"] != typ || at(e, "object.metadata.name") != name || at(e, "object.data.k") != any(data) && data != "" {
			t.Errorf("JSON: %s of %s", e["type"], at(e, "object.metadata.name"))
		}
		e := <-proto.ResultChan()
		if m, ok := e.Object.(*corev1.ConfigMap); !ok || string(e.Type) != typ || m.Name != name || m.Data["k"] != data {
			t.Errorf("protobuf: %s of %T", e.Type, e.Object)
		}
	}
	see("ADDED", "a", "")
	see("ADDED", "b", large)
	see("ADDED", "c", "")
	if _, err := maps.Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Data: map[string]string{"k": large + "y"}}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.configMap("d")
	see("MODIFIED", "b", large+"y")
	see("ADDED", "d", "")
}
