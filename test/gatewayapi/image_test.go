package gatewayapi

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
)

// writeImage makes an OCI archive at path of an image called name with
// a program at /app.
func writeImage(path, name, app string) error {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, dir := range []string{"bin/", "tmp/", "etc/"} {
		if err := w.WriteHeader(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o1777}); err != nil {
			return err
		}
	}
	for _, f := range []struct{ from, to string }{{app, "app"}} {
		b, err := os.ReadFile(f.from)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: f.to, Mode: 0o755, Size: int64(len(b))}); err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}

	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	type descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	add := func(name string, b []byte) error {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(b))}); err != nil {
			return err
		}
		_, err := archive.Write(b)
		return err
	}
	blob := func(mediaType string, b []byte) (descriptor, error) {
		sum := sha256.Sum256(b)
		id := hex.EncodeToString(sum[:])
		return descriptor{MediaType: mediaType, Digest: "sha256:" + id, Size: len(b)}, add("blobs/sha256/"+id, b)
	}
	document := func(mediaType string, v any) (descriptor, error) {
		b, err := json.Marshal(v)
		if err != nil {
			return descriptor{}, err
		}
		return blob(mediaType, b)
	}
	const vnd = "application/vnd.oci.image."
	l, err := blob(vnd+"layer.v1.tar", layer.Bytes())
	if err != nil {
		return err
	}
	config, err := document(vnd+"config.v1+json", map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Env": []string{"PATH=/bin"}, "Entrypoint": []string{"/app"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{l.Digest}},
	})
	if err != nil {
		return err
	}
	manifest, err := document(vnd+"manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": vnd + "manifest.v1+json", "config": config, "layers": []descriptor{l},
	})
	if err != nil {
		return err
	}
	manifest.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifest}})
	if err != nil {
		return err
	}
	if err := add("index.json", index); err != nil {
		return err
	}
	if err := add("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return nil
}
