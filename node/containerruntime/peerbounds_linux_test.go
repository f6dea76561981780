package containerruntime

import (
	"bytes"
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestEndlessAnswers: a registry or another node answers with more than it has claimed, or says
// that more is to come than is taken. What has no bound of its own never gets to the disk.
func TestEndlessAnswers(t *testing.T) {
	if isolated(t) {
		return
	}
	h := newHostile(t)
	var endless, unsaid string // digests of content that does not end, and whose length is not claimed
	var sent atomic.Int64
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of := filepath.Base(r.URL.Path)
		if d := h.tags[filepath.Base(filepath.Dir(filepath.Dir(r.URL.Path)))]; of == "v1" {
			of = d.Digest.String()
		}
		if of == unsaid { // no digest either: whoever asks is to compute it
			w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		} else if of != endless || r.Method == http.MethodHead {
			h.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		piece := bytes.Repeat([]byte(" "), 1<<20)
		for r.Method == http.MethodGet && sent.Load() < 1<<30 {
			if _, err := w.Write(piece); err != nil {
				return
			}
			sent.Add(int64(len(piece)))
		}
	})
	n, i, _, peer := puller(t, answer)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	before := n.kept(t, i)

	layer, diff := h.layer()
	config := h.config(diff)
	h.tags["layer"] = h.manifest(config, layer)
	h.tags["config"] = h.tags["layer"]
	manifest := h.manifest(config, layer)
	h.tags["manifest"] = h.object(ocispec.MediaTypeImageIndex, index(manifest))
	claimed := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("claimed"), Size: 1 << 40}
	h.tags["claimed"] = h.object(ocispec.MediaTypeImageIndex, index(claimed))
	large := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromString("large"), Size: 1 << 40}
	h.tags["large-config"] = h.manifest(large, layer)
	h.tags["unsaid"] = ocispec.Descriptor{Digest: digest.FromString("unsaid")}
	for repository, which := range map[string]digest.Digest{
		"layer": layer.Digest, "config": config.Digest, "manifest": manifest.Digest, "claimed": claimed.Digest, "large-config": large.Digest, "unsaid": "",
	} {
		endless, unsaid = which.String(), ""
		if repository == "unsaid" {
			unsaid = h.tags[repository].Digest.String()
		}
		for from, pull := range map[string]func(string) error{
			"registry": func(name string) error { _, err := i.Pull(ctx, name); return err },
			"nodes": func(name string) error {
				return i.PullFrom(ctx, name, []string{peer.Listener.Addr().String()}, peer.Client(), true)
			},
		} {
			if repository == "unsaid" && from == "registry" {
				continue // nothing of it is stored, and the kubelet bounds how long it waits
			}
			sent.Store(0)
			err := pull("example.com/" + repository + ":v1")
			t.Logf("%s of %s: %v", repository, from, err)
			if err == nil {
				t.Errorf("%s of %s is pulled", repository, from)
			}
			// Sockets have room for some.
			if got := sent.Load(); got > 32<<20 {
				t.Errorf("%s of %s: %s MiB were sent", repository, from, strconv.FormatInt(got>>20, 10))
			}
			if after := n.kept(t, i); !slices.Equal(before, after) {
				t.Errorf("%s of %s: what is kept:\n%s\ninstead of\n%s", repository, from, strings.Join(after, "\n"), strings.Join(before, "\n"))
			}
		}
	}
}
