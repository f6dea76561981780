package endpoints

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// What is streamed is the same, byte by byte, as what is held as a whole: a pretty
// document without its spaces.
func TestStreamedLists(t *testing.T) {
	w := newWholeWorld(t)
	for i := range 6 {
		made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", i), Annotations: map[string]string{"of": strings.Repeat("<&>", 10000+i)}},
			Data: map[string]string{"a": strings.Repeat("x", gzipFrom/5)}}
		if _, err := w.client.CoreV1().ConfigMaps("default").Create(context.Background(), made, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const path = "/api/v1/namespaces/default/configmaps?"
	for _, kind := range []string{"application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"} {
		for _, query := range []string{"", "includeObject=Object&", "includeObject=None&"} {
			for _, zip := range []bool{false, true} {
				_, pretty, _ := w.do("GET", path+query+"pretty=true", "", "", "Accept", kind)
				var want bytes.Buffer
				if err := json.Compact(&want, []byte(pretty)); err != nil {
					t.Fatal(err)
				}
				if got := w.streamed(path+query, kind, zip); withoutAge(got) != withoutAge(want.String()+"\n") {
					t.Errorf("%s, %s, gzip %v: got %.3000s, want %.3000s", kind, query, zip, got, want.String())
				}
			}
		}
	}
	for _, zip := range []bool{false, true} {
		var whole, got metav1.PartialObjectMetadataList
		if err := json.Unmarshal([]byte(w.streamed(path, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", false)), &whole); err != nil {
			t.Fatal(err)
		}
		for i := range whole.Items {
			whole.Items[i].TypeMeta = metav1.TypeMeta{}
		}
		want, err := whole.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		var unknown runtime.Unknown
		body := w.streamed(path, "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", zip)
		if err := unknown.Unmarshal([]byte(strings.TrimPrefix(body, "k8s\x00"))); err != nil {
			t.Fatal(err)
		}
		if err := got.Unmarshal(unknown.Raw); err != nil || len(got.Items) != 6 || unknown.Kind != "PartialObjectMetadataList" || !bytes.Equal(unknown.Raw, want) {
			t.Errorf("protobuf, gzip %v: %d items of %s, %v", zip, len(got.Items), unknown.Kind, err)
		}
	}
}

var age = regexp.MustCompile(`"\d+s"\]`)

func withoutAge(s string) string { return age.ReplaceAllString(s, `"age"]`) }

// streamed is the body of a GET, unzipped.
func (w *world) streamed(path, accept string, zip bool) string {
	w.t.Helper()
	code, body, header := w.do("GET", path, "", "", "Accept", accept, "Accept-Encoding", map[bool]string{true: "gzip", false: "identity"}[zip])
	if code != 200 || (header.Get("Content-Encoding") == "gzip") != zip {
		w.t.Fatalf("%s: %d, %v", accept, code, header)
	}
	if !zip {
		return body
	}
	r, err := gzip.NewReader(strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(data)
}
