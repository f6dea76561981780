package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

// TestArchive: blobs are named by what is in them, a shared layer is there
// once, folders come before their files, and two names are two images.
func TestArchive(t *testing.T) {
	l := layer{"l", func(_ *sources, l *files) error { return l.text("etc/deep/file", "hello") }}
	path := filepath.Join(t.TempDir(), "layer")
	if err := writeLayer(nil, l, path); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := newArchive(&out)
	if err := a.addLayer("l", path); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"r/a:1", "r/b:1"} {
		if err := a.addImage(name, image{layers: []layer{l}, cmd: []string{"sh"}, user: "7"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.close(); err != nil {
		t.Fatal(err)
	}

	blobs := contents(t, &out)
	for name, b := range blobs {
		if id, ok := strings.CutPrefix(name, "blobs/sha256/"); ok {
			if sum := sha256.Sum256([]byte(b)); hex.EncodeToString(sum[:]) != id {
				t.Errorf("%s is not named by its content", name)
			}
		}
	}
	if n := len(blobs); n != 2+1+2*2 {
		t.Errorf("%d files in the archive", n)
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal([]byte(blobs["index.json"]), &index); err != nil {
		t.Fatal(err)
	}
	configs := map[string]bool{}
	for _, d := range index.Manifests {
		var m struct {
			Config descriptor
			Layers []descriptor
		}
		if err := json.Unmarshal([]byte(blobs["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]), &m); err != nil {
			t.Fatal(err)
		}
		configs[m.Config.Digest] = true
		files := contents(t, strings.NewReader(blobs["blobs/sha256/"+strings.TrimPrefix(m.Layers[0].Digest, "sha256:")]))
		if _, ok := files["etc/deep/"]; !ok || files["etc/deep/file"] != "hello" {
			t.Errorf("layer has %v", files)
		}
	}
	if len(configs) != 2 {
		t.Errorf("configurations: %v", configs)
	}
}

func contents(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	all := map[string]string{}
	for r := tar.NewReader(r); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all[h.Name] = string(b)
	}
}
