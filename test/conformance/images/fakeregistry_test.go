package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// TestFakeRegistry: from the tag, each digest leads to the file in which agnhost's server
// looks for it.
func TestFakeRegistry(t *testing.T) {
	l := layer{"l", func(_ *sources, l *files) error { return l.text("pause", "program") }}
	path := filepath.Join(t.TempDir(), "layer")
	if err := writeLayer(nil, l, path); err != nil {
		t.Fatal(err)
	}
	var b, out bytes.Buffer
	a := newArchive(&b)
	if err := a.addLayer("l", path); err != nil {
		t.Fatal(err)
	}
	if err := a.addImage("r/pause:1", image{layers: []layer{l}}); err != nil {
		t.Fatal(err)
	}
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(&out)
	if err := served(&files{w: w, seen: map[string]bool{}}, &b, a.manifests[0].Digest); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	there := contents(t, &out)
	find := func(kind, digest string) string {
		t.Helper()
		algorithm, id, _ := strings.Cut(strings.TrimSpace(digest), ":")
		content, ok := there[filepath.Join("var/registry/pause", kind, algorithm, id[:2], id, "data")]
		if !ok {
			t.Fatalf("%s %s is not there, of %d files", kind, digest, len(there))
		}
		return content
	}
	var m struct {
		MediaType string
		Config    descriptor
		Layers    []descriptor
	}
	if err := json.Unmarshal([]byte(find("manifests", there["var/registry/pause/manifests/testing"])), &m); err != nil || m.MediaType != manifestType {
		t.Fatalf("%v, of type %s", err, m.MediaType)
	}
	find("blobs", m.Config.Digest)
	if files := contents(t, strings.NewReader(find("blobs", m.Layers[0].Digest))); files["pause"] != "program" {
		t.Errorf("the layer has %v", files)
	}
}
