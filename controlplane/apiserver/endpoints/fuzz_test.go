package endpoints

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// Whatever is sent is decoded or refused, never a panic.
func FuzzDecodeBody(f *testing.F) {
	f.Add(0, []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`))
	f.Add(1, []byte("kind: Pod\nmetadata: {name: a}\n"))
	f.Add(2, protobufOf(f, benchPod("a")))
	f.Add(1, []byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, kind int, data []byte) {
		formats := []format{formatJSON, formatYAML, formatProtobuf}
		pod := &corev1.Pod{}
		if _, err := decodeInto(formats[uint(kind)%3], data, pod, podKind, true); err != nil {
			return
		}
		if _, err := encodeJSON(pod, false); err != nil {
			t.Skip("a value that JSON cannot say")
		}
	})
}

// What is a 500 upstream, too: an applied object that the schema does not know,
// and an item of a list without the key that the list is merged by.
var upstreams500 = regexp.MustCompile("failed to create typed patch object|does not contain declared merge key")

// Patches of all kinds on a pod end in an object or an error.
func FuzzPatch(f *testing.F) {
	w := newWorld(f)
	w.fill(f, 1)
	f.Add(0, []byte(`[{"op":"add","path":"/metadata/labels/x","value":"y"}]`))
	f.Add(1, []byte(`{"spec":{"containers":null}}`))
	f.Add(2, []byte(`{"spec":{"containers":[{"name":"c","$patch":"delete"}]}}`))
	f.Add(3, []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p0}\n"))
	types := []string{"application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml"}
	f.Fuzz(func(t *testing.T, kind int, data []byte) {
		if _, err := jsonpatch.DecodePatch(data); err == nil && kind%4 != 0 {
			t.Skip()
		}
		own := *w
		own.t = t
		code, body, _ := own.do("PATCH", "/api/v1/namespaces/bench/pods/p0?dryRun=All&fieldManager=f", types[uint(kind)%4], string(data))
		if code >= 500 && !upstreams500.MatchString(body) {
			t.Fatalf("%d %s", code, body)
		}
	})
}

// Queries of lists and deletions, selectors among them, are answered or refused.
func FuzzQuery(f *testing.F) {
	w := newWorld(f)
	w.fill(f, 1)
	for _, q := range []string{
		"limit=1&continue=x&resourceVersion=1&resourceVersionMatch=Exact", "labelSelector=a in (b,c),!d,e!=f&fieldSelector=metadata.name=p0,spec.nodeName!=",
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=-1", "labelSelector=a notin (), b>1&limit=-1", "gracePeriodSeconds=x&propagationPolicy=Orphan&orphanDependents=true",
		"pretty=%zz;&allowWatchBookmarks=2", "fieldSelector=metadata.name=a\\,b",
	} {
		f.Add(false, q)
		f.Add(true, q)
	}
	f.Fuzz(func(t *testing.T, deletes bool, query string) {
		values, _ := url.ParseQuery(query)
		for _, key := range []string{"watch", "timeout", "dryRun"} {
			values.Del(key) // streams, waits, or changes what the next one sees
		}
		own := *w
		own.t = t
		method, path := "GET", "/api/v1/namespaces/bench/pods?"
		if deletes {
			method, path = "DELETE", "/api/v1/namespaces/bench/pods/p0?dryRun=All&"
		}
		if code, body, _ := own.do(method, path+values.Encode(), "", ""); code >= 500 && code != 504 {
			t.Fatalf("%s %s: %d %s", method, values.Encode(), code, body)
		}
	})
}

// The options of a deletion in a body of any format are read or refused.
func FuzzDeleteOptions(f *testing.F) {
	w := newWorld(f)
	w.fill(f, 1)
	f.Add(0, []byte(`{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":-1,"preconditions":{"uid":null},"propagationPolicy":"Orphan","dryRun":["All"]}`))
	f.Add(1, []byte("kind: Pod\napiVersion: v1\ndryRun: [All]\n"))
	f.Add(2, []byte("k8s\x00\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x05\x2a\x03All"))
	f.Add(3, []byte("\xd9\xd9\xf7\xa0")) // CBOR, which is off by default
	types := []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor"}
	f.Fuzz(func(t *testing.T, kind int, body []byte) {
		own := *w
		own.t = t
		code, answer, _ := own.do("DELETE", "/api/v1/namespaces/bench/configmaps/absent", types[uint(kind)%4], string(body))
		if code >= 500 || code == 200 || uint(kind)%4 == 3 && len(body) > 0 && code != 415 {
			t.Fatalf("%d %s", code, answer)
		}
	})
}

// Whatever a client says it reads, its answer is in a form that it named, or a
// refusal that says so; what it says of compression is held too.
func FuzzAccept(f *testing.F) {
	w := newWorld(f)
	w.fill(f, 1)
	for _, accept := range []string{
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1;q=0.5,application/yaml",
		"application/json;as=Table;v=v2;g=meta.k8s.io", "text/html, */*;q=0.1", "application/*;pretty=1", ";;=;q=NaN,,", `application/json;as="Table";v="v1";g="meta.k8s.io"`,
	} {
		f.Add(false, accept, "gzip;q=0, *")
		f.Add(true, accept, "br, gzip")
	}
	f.Fuzz(func(t *testing.T, one bool, accept, encoding string) {
		if !httpguts.ValidHeaderFieldValue(accept) || !httpguts.ValidHeaderFieldValue(encoding) {
			t.Skip("no client can send it")
		}
		own := *w
		own.t = t
		path := "/api/v1/namespaces/bench/pods"
		if one {
			path += "/p0"
		}
		code, body, h := own.do("GET", path, "", "", "Accept", accept, "Accept-Encoding", encoding)
		media, _, _ := strings.Cut(h.Get("Content-Type"), ";")
		switch {
		case code != 200 && code != 406:
			t.Fatalf("%d %s", code, body)
		case h.Get("Content-Encoding") == "gzip" && !strings.Contains(encoding, "gzip") && !strings.Contains(encoding, "*"):
			t.Fatalf("compressed for %q", encoding)
		case code == 200 && strings.TrimSpace(accept) != "" && !strings.Contains(strings.ToLower(accept), media) && !strings.Contains(accept, "*"):
			t.Fatalf("%s for %q", media, accept)
		}
	})
}
