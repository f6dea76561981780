package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
)

// Media types of the image specification.
const (
	layerType    = "application/vnd.oci.image.layer.v1.tar"
	configType   = "application/vnd.oci.image.config.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
)

// A descriptor names one blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// An archive is an OCI layout in one tar file that holds many images, which
// share the layers they have in common.
type archive struct {
	w         *tar.Writer
	layers    map[string]descriptor
	manifests []descriptor
}

func newArchive(w io.Writer) *archive {
	return &archive{w: tar.NewWriter(w), layers: map[string]descriptor{}}
}

// addLayer adds the layer in a file, once for each name.
func (a *archive) addLayer(name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	id := hex.EncodeToString(sum.Sum(nil))
	a.layers[name] = descriptor{MediaType: layerType, Digest: "sha256:" + id, Size: size}
	if err := a.w.WriteHeader(&tar.Header{Name: "blobs/sha256/" + id, Mode: 0o644, Size: size}); err != nil {
		return err
	}
	_, err = io.Copy(a.w, f)
	return err
}

// addImage adds an image under one name, of layers added before.
func (a *archive) addImage(name string, im image) error {
	var layers []descriptor
	var diffs []string
	for _, l := range im.layers {
		layers = append(layers, a.layers[l.name])
		diffs = append(diffs, a.layers[l.name].Digest)
	}
	ports := map[string]struct{}{}
	for _, p := range im.ports {
		ports[fmt.Sprintf("%d/tcp", p)] = struct{}{}
	}
	config, err := a.document(configType, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{
			"Env":        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			"Entrypoint": im.entrypoint, "Cmd": im.cmd, "User": im.user, "ExposedPorts": ports,
			// Two versions of the same program are two images.
			"Labels": map[string]string{"org.opencontainers.image.ref.name": name},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
	if err != nil {
		return err
	}
	manifest, err := a.document(manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": layers,
	})
	if err != nil {
		return err
	}
	manifest.Annotations = map[string]string{"io.containerd.image.name": name}
	a.manifests = append(a.manifests, manifest)
	return nil
}

// close writes the list of images.
func (a *archive) close() error {
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": a.manifests})
	if err != nil {
		return err
	}
	if err := a.add("index.json", index); err != nil {
		return err
	}
	if err := a.add("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	return a.w.Close()
}

func (a *archive) document(mediaType string, v any) (descriptor, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	sum := sha256.Sum256(b)
	id := hex.EncodeToString(sum[:])
	return descriptor{MediaType: mediaType, Digest: "sha256:" + id, Size: int64(len(b))}, a.add("blobs/sha256/"+id, b)
}

func (a *archive) add(name string, b []byte) error {
	if err := a.w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(b))}); err != nil {
		return err
	}
	_, err := a.w.Write(b)
	return err
}
