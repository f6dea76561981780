package containerruntime

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/continuity/sysx"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// packed is what is compressed so.
func packed(t testing.TB, plain []byte, by func(io.Writer) (io.WriteCloser, error)) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := by(&b)
	if err == nil {
		_, err = w.Write(plain)
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// usualLayer has what images have, and a directory whose headers are as large as they may be.
func usualLayer(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	at := time.Unix(1_700_000_000, 123456789)
	long := strings.Repeat("a-long-name/", 20)
	for _, h := range []tar.Header{
		{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o755, ModTime: at, Format: tar.FormatPAX},
		{Name: long, Typeflag: tar.TypeDir, Mode: 0o700, ModTime: at, Format: tar.FormatPAX},
		{Name: long + "file", Typeflag: tar.TypeReg, Mode: 0o4755, Size: 5000, Uid: 1000, Gid: 1001, ModTime: at, AccessTime: at, Format: tar.FormatPAX,
			PAXRecords: map[string]string{"SCHILY.xattr.user.test": "value"}},
		{Name: "of-gnu/" + long + "file", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1, ModTime: at.Truncate(time.Second), Format: tar.FormatGNU},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: long + "file"},
		{Name: "soft", Typeflag: tar.TypeSymlink, Linkname: "../" + long},
		{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o600},
		{Name: "dir/removed", Typeflag: tar.TypeReg, Mode: 0o644, Size: 512},
		{Name: "dir/.wh.removed", Typeflag: tar.TypeReg},
		{Name: "opaque/.wh..wh..opq", Typeflag: tar.TypeReg},
		{Name: "full/", Typeflag: tar.TypeDir, Mode: 0o711, PAXRecords: map[string]string{"KNARR.test": strings.Repeat("a", 120<<10)}},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, strings.Repeat("x", int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return slices.Concat(b.Bytes(), sparse1x0(100), tarEntry(tar.TypeReg, "last", "text"), make([]byte, 1024), make([]byte, 8192))
}

// TestHostileHeaders: a layer of few bytes, whose directories have headers of a mebibyte each,
// is refused, however it is packed and wherever it is from, and the error says why. What
// images usually have is unpacked.
func TestHostileHeaders(t *testing.T) {
	if isolated(t) {
		return
	}
	h := newHostile(t)
	_, i, _, peer := puller(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	head := slices.Concat(tarEntry('x', "x", paxRecord("comment", strings.Repeat("a", 1<<20-100))), tarEntry(tar.TypeDir, "dir/", ""))
	hostile := bytes.Repeat(head, 100)
	for from, pull := range map[string]func(name string, image ocispec.Descriptor) error{
		"registry": func(name string, _ ocispec.Descriptor) error { _, err := i.Pull(ctx, name); return err },
		"nodes": func(name string, _ ocispec.Descriptor) error {
			return i.PullFrom(ctx, name, []string{peer.Listener.Addr().String()}, peer.Client(), true)
		},
		"archive": func(name string, image ocispec.Descriptor) error {
			_, err := i.LoadPinned(ctx, h.archive(name, image))
			return err
		},
	} {
		for kind, by := range map[string]func(io.Writer) (io.WriteCloser, error){
			ocispec.MediaTypeImageLayerGzip:    func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil },
			ocispec.MediaTypeImageLayerZstd:    func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w, zstd.WithWindowSize(1<<20)) },
			ocispec.MediaTypeImageLayer:        nil,
			images.MediaTypeDockerSchema2Layer: nil,
		} {
			for what, plain := range map[string][]byte{"usual": usualLayer(t), "hostile": hostile} {
				plain = append(tarEntry(tar.TypeReg, "hello", rand.Text()), plain...)
				b := plain[:min(len(plain), 8<<20)]
				if by != nil {
					b = packed(t, plain, by)
				}
				clear(h.blobs) // an archive has them all
				layer := h.add(kind, b)
				image := h.manifest(h.config(digest.FromBytes(plain)), layer)
				repository := from + "-" + strings.ToLower(rand.Text())
				h.tags[repository] = image
				name, what := "example.com/"+repository+":v1", from+" "+kind+" "+what
				if strings.HasSuffix(what, "usual") {
					if err := pull(name, image); err != nil {
						t.Errorf("%s: %v", what, err)
					}
					continue
				}
				little(t, what, func() {
					err := pull(name, image)
					if err == nil || !strings.Contains(err.Error(), `archive with headers of more than 131072 bytes for one entry, after "hello"`) {
						t.Errorf("%s: %v", what, err)
					}
				})
			}
		}
	}
}

// tree describes all that is in a directory.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		i, err := os.Lstat(path)
		if err != nil {
			return err
		}
		s := i.Sys().(*syscall.Stat_t)
		what := fmt.Sprint(i.Mode(), s.Size, s.Nlink, s.Uid, s.Gid, s.Rdev)
		if s.Mtim.Sec < 1_750_000_000 { // the layer says it
			what += fmt.Sprint(s.Mtim)
		}
		switch {
		case i.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			what += fmt.Sprint(digest.FromBytes(b))
			value, err := sysx.LGetxattr(path, "user.test")
			if err == nil {
				what += string(value)
			}
		case i.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what += to
		}
		all[strings.TrimPrefix(path, dir)] = what
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestUsualLayer: with bounds a layer becomes the files that it becomes without.
func TestUsualLayer(t *testing.T) {
	if isolated(t) {
		return
	}
	layer := usualLayer(t)
	with, without := t.TempDir(), t.TempDir()
	for dir, r := range map[string]io.Reader{with: layerHeaders(t.Context(), roomy(t.Context(), io.NopCloser(bytes.NewReader(layer)))), without: bytes.NewReader(layer)} {
		if err := os.MkdirAll(filepath.Join(dir, "opaque", "before"), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Apply(t.Context(), dir, r); err != nil {
			t.Fatal(err)
		}
	}
	got, want := tree(t, with), tree(t, without)
	if !maps.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	for _, path := range []string{"/hard", "/sparse", "/last", "/soft", "/full", "/opaque"} {
		if got[path] == "" {
			t.Errorf("%s is not there", path)
		}
	}
}

// BenchmarkUnpack unpacks layers with bounds and without.
func BenchmarkUnpack(b *testing.B) {
	for name, c := range map[string]struct {
		files, size int
		at          time.Time
	}{
		"200 MB":                {200, 1 << 20, time.Unix(1_700_000_000, 0)},
		"20000 files":           {20_000, 2000, time.Unix(1_700_000_000, 0)},
		"20000 files, extended": {20_000, 2000, time.Unix(1_700_000_000, 5)},
	} {
		var layer bytes.Buffer
		w := tar.NewWriter(&layer)
		for i := range c.files {
			for _, h := range []tar.Header{
				{Name: fmt.Sprintf("usr/lib/node_modules/%d/", i/20), Typeflag: tar.TypeDir, Mode: 0o755, ModTime: c.at, Format: tar.FormatPAX},
				{Name: fmt.Sprintf("usr/lib/node_modules/%d/file-%d.js", i/20, i), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(c.size), ModTime: c.at, Format: tar.FormatPAX},
			} {
				if h.Typeflag == tar.TypeDir && i%20 > 0 {
					continue
				}
				if err := w.WriteHeader(&h); err != nil {
					b.Fatal(err)
				}
				if _, err := w.Write(make([]byte, h.Size)); err != nil {
					b.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		for _, bounds := range []string{"without", "with"} {
			b.Run(name+" "+bounds, func(b *testing.B) {
				b.SetBytes(int64(layer.Len()))
				b.ReportAllocs()
				for b.Loop() {
					var r io.Reader = bytes.NewReader(layer.Bytes())
					if bounds == "with" {
						r = layerHeaders(b.Context(), roomy(b.Context(), io.NopCloser(r)))
					}
					dir := b.TempDir()
					if _, err := archive.Apply(b.Context(), dir, r); err != nil {
						b.Fatal(err)
					}
					b.StopTimer()
					if err := os.RemoveAll(dir); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			})
		}
	}
}
