package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// pause is what keeps a pod's namespaces.
var pause = image{names: []string{registry + "pause:3.10.2"}, layers: []layer{one("pause", 0o755, (*sources).pause)}, entrypoint: []string{"/pause"}, user: "65535:65535"}

// fakeRegistry is what agnhost's fake-registry-server serves, laid out as upstream's
// prepare_registry.sh does: pause, with the tag that specs ask for.
var fakeRegistry = layer{"fake-registry", func(s *sources, l *files) error {
	dir, err := os.MkdirTemp("", "knarr-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var b bytes.Buffer
	a, path := newArchive(&b), filepath.Join(dir, "layer")
	if err := writeLayer(s, pause.layers[0], path); err != nil {
		return err
	}
	if err := a.addLayer(pause.layers[0].name, path); err != nil {
		return err
	}
	if err := a.addImage(pause.names[0], pause); err != nil {
		return err
	}
	if err := a.close(); err != nil {
		return err
	}
	return served(l, &b, a.manifests[0].Digest)
}}

// served lays out an archive of one image, whose manifest has this digest.
func served(l *files, archive io.Reader, manifest string) error {
	const dir = "var/registry/pause/"
	for t := tar.NewReader(archive); ; {
		h, err := t.Next()
		if err == io.EOF {
			return l.text(dir+"manifests/testing", manifest+"\n")
		}
		if err != nil {
			return err
		}
		id, ok := strings.CutPrefix(h.Name, "blobs/sha256/")
		if !ok {
			continue
		}
		content, err := io.ReadAll(t)
		if err != nil {
			return err
		}
		kind := "blobs"
		if "sha256:"+id == manifest {
			kind = "manifests"
		}
		if err := l.text(dir+kind+"/sha256/"+id[:2]+"/"+id+"/data", string(content)); err != nil {
			return err
		}
	}
}
