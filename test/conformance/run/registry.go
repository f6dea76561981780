package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// upstreamRegistry is where the suite's images come from.
const upstreamRegistry = "registry.k8s.io"

// A registry stands in for upstream's: it serves the images of archives, to
// specs that insist on pulling.
type registry struct {
	archives  []*os.File
	blobs     map[string]*io.SectionReader // by digest
	manifests map[string]string            // digests, by image name
}

func openRegistry(paths ...string) (*registry, error) {
	r := &registry{blobs: map[string]*io.SectionReader{}, manifests: map[string]string{}}
	for _, path := range paths {
		f, err := os.Open(path)
		if err == nil {
			r.archives = append(r.archives, f)
			err = r.index(f)
		}
		if err != nil {
			r.close()
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
	}
	return r, nil
}

func (r *registry) close() {
	for _, f := range r.archives {
		f.Close()
	}
}

// index finds where an archive has what.
func (r *registry) index(archive *os.File) error {
	for t := tar.NewReader(archive); ; {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		at, err := archive.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if id, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok {
			r.blobs["sha256:"+id] = io.NewSectionReader(archive, at, h.Size)
		}
		if h.Name != "index.json" {
			continue
		}
		var index struct {
			Manifests []struct {
				Digest      string
				Annotations map[string]string
			}
		}
		if err := json.NewDecoder(t).Decode(&index); err != nil {
			return err
		}
		for _, m := range index.Manifests {
			r.manifests[m.Annotations["io.containerd.image.name"]] = m.Digest
		}
	}
}

// ServeHTTP is as much of the distribution protocol as pulling needs.
func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	path, ok := strings.CutPrefix(q.URL.Path, "/v2/")
	if !ok || q.Method != http.MethodGet && q.Method != http.MethodHead {
		http.NotFound(w, q)
		return
	}
	if path == "" {
		return
	}
	digest, contentType := "", "application/octet-stream"
	if name, ref, ok := strings.Cut(path, "/manifests/"); ok {
		digest, contentType = ref, "application/vnd.oci.image.manifest.v1+json"
		if !strings.HasPrefix(ref, "sha256:") {
			digest = r.manifests[upstreamRegistry+"/"+name+":"+ref]
		}
	} else if _, ref, ok := strings.Cut(path, "/blobs/"); ok {
		digest = ref
	}
	blob := r.blobs[digest]
	if blob == nil {
		http.NotFound(w, q)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Docker-Content-Digest", digest)
	http.ServeContent(w, q, "", time.Time{}, io.NewSectionReader(blob, 0, blob.Size()))
}

// serveRegistry serves the archives' images to the nodes of a cluster as
// upstream's registry, until stop is called.
func serveRegistry(ctx context.Context, c *cluster, archives []string) (stop func(), err error) {
	r, err := openRegistry(archives...)
	if err != nil {
		return nil, err
	}
	host, err := c.host()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(host, 0).String())
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() { _ = srv.Serve(l) }()
	for _, dir := range c.nodeDirs() {
		// Containerd's own form of saying which server stands in for which.
		dir = filepath.Join(dir, "containerd", "certs.d", upstreamRegistry)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), fmt.Appendf(nil, "server = \"http://%s\"\n", l.Addr()), 0o644); err != nil {
			return nil, err
		}
	}
	return func() { srv.Close(); r.close() }, nil
}
