package containerruntime

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/programs"
)

// digestLabel marks the embedded sandbox image with the program it was made
// of, so that a new knarr replaces it and the same one leaves it alone.
const digestLabel = "knarr.io/pause"

// ensurePause puts the embedded sandbox image under name, unless it is there, and
// gives its digest. An image somebody else put there stays, and has another one.
func ensurePause(ctx context.Context, conn *grpc.ClientConn, name, snapshotter string) (ours digest.Digest, err error) {
	program, err := programs.Read(programs.Pause)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(program)
	label := hex.EncodeToString(sum[:8])
	images, err := imagesOn(conn, snapshotter)
	if err != nil {
		return "", err
	}
	archive, ours, err := pauseArchive(name, program)
	if err != nil {
		return "", fmt.Errorf("build image %s: %w", name, err)
	}
	image, found, err := images.stored(ctx, name)
	if err != nil {
		return "", err
	}
	if was := image.Labels[digestLabel]; found && (was == "" || was == label) {
		return ours, nil // theirs, ours, or theirs where ours was before
	}
	if _, err := images.load(ctx, bytes.NewReader(archive), map[string]string{digestLabel: label}, nil); err != nil {
		return "", fmt.Errorf("load image %s: %w", name, err)
	}
	return ours, waitForImage(ctx, cri.NewImageServiceClient(conn), name)
}

// writePauseRoot puts the program into a directory of its own, which is the root of the
// sandboxes that the shim starts without libcontainer. Those that run keep what they have.
func writePauseRoot(state string) error {
	program, err := programs.Read(programs.Pause)
	if err != nil {
		return err
	}
	dir := filepath.Join(state, pauseRootName)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil { // whatever the umask is
		return err
	}
	path := filepath.Join(dir, "pause")
	if is, err := os.ReadFile(path); err == nil && bytes.Equal(is, program) {
		return nil
	}
	part := filepath.Join(state, "."+pauseRootName)
	if err := os.WriteFile(part, program, 0o600); err != nil {
		return err
	}
	if err := os.Chmod(part, 0o555); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// waitForImage returns once the CRI knows the image, which it learns from an
// event shortly after containerd has it.
func waitForImage(ctx context.Context, images cri.ImageServiceClient, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		status, err := images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
		if err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		if status.Image != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("image %s does not appear: %w", name, ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// pauseArchive gives the image archive with program as its only file, and the digest
// of the image.
func pauseArchive(name string, program []byte) (archive []byte, image digest.Digest, err error) {
	layer, err := tarOf(file{"pause", 0o755, program})
	if err != nil {
		return nil, "", err
	}
	platform := ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	config, err := json.Marshal(ocispec.Image{
		Platform: platform,
		Config:   ocispec.ImageConfig{User: "65535:65535", Entrypoint: []string{"/pause"}, WorkingDir: "/"},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}},
	})
	if err != nil {
		return nil, "", err
	}
	describe := func(kind string, b []byte) ocispec.Descriptor {
		return ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(b), Size: int64(len(b))}
	}
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: ocispecs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    describe(ocispec.MediaTypeImageConfig, config),
		Layers:    []ocispec.Descriptor{describe(ocispec.MediaTypeImageLayer, layer)},
	})
	if err != nil {
		return nil, "", err
	}
	entry := describe(ocispec.MediaTypeImageManifest, manifest)
	entry.Platform = &platform
	entry.Annotations = map[string]string{"io.containerd.image.name": name}
	index, err := json.Marshal(ocispec.Index{
		Versioned: ocispecs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{entry},
	})
	if err != nil {
		return nil, "", err
	}
	blob := func(b []byte) file { return file{"blobs/sha256/" + digest.FromBytes(b).Encoded(), 0o644, b} }
	archive, err = tarOf(
		file{ocispec.ImageLayoutFile, 0o644, []byte(`{"imageLayoutVersion":"` + ocispec.ImageLayoutVersion + `"}`)},
		blob(layer), blob(config), blob(manifest),
		file{ocispec.ImageIndexFile, 0o644, index})
	return archive, entry.Digest, err
}

type file struct {
	name string
	mode int64
	data []byte
}

// tarOf gives the same bytes for the same files, always.
func tarOf(files ...file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
