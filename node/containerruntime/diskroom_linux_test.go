package containerruntime

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"knarr/internal/run"
	"knarr/node/containerruntime/registries"
)

// TestDiskRoom: an image that would fill its disk is refused by what its layers say they are,
// by what comes of them, and by what they become when they are unpacked, and leaves nothing;
// the disk never gets full, and one that fits is pulled then.
func TestDiskRoom(t *testing.T) {
	if isolated(t) {
		return
	}
	root := smallDisk(t)
	h := newHostile(t)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	c, err := registries.Parse([]byte(`mirrors: {"*": {endpoint: ["` + server.URL + `"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	c.NoDefault = true
	n := newNodeWith(t, func(config *Config) { config.Registries, config.Root = c, root+"/root" })
	i, err := OpenImages(n.config.withDefaultsForTest(t).Socket(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	h.tooLarge()
	var least atomic.Int64
	least.Store(1 << 40)
	done := make(chan struct{})
	defer close(done)
	free := func() int64 {
		var s unix.Statfs_t
		if err := unix.Statfs(root, &s); err != nil {
			t.Error(err)
		}
		return int64(s.Bavail) * s.Frsize
	}
	run.Go("test: look at the disk", func() {
		for {
			least.Store(min(least.Load(), free()))
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	before, room := n.kept(t, i), free()
	for name, want := range map[string]string{
		"described": "no room on the disk of images: ", "sent": "no room on the disk of images: ", "unpacked": "no room on the disk of images: ",
		"holes": "sparse file with holes of 1073741312 bytes, larger than 16777216 bytes", "tail": "archive with more than 16777216 bytes after its end",
	} {
		_, err := i.Pull(ctx, "example.com/"+name+":v1")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		if after := n.kept(t, i); !slices.Equal(before, after) {
			t.Errorf("%s: what is kept:\n%s\ninstead of\n%s", name, strings.Join(after, "\n"), strings.Join(before, "\n"))
		}
		if left := free(); left < room-1<<20 {
			t.Errorf("%s: %d bytes are free, %d were", name, left, room)
		}
	}
	if n := least.Load(); n < 1<<20 {
		t.Errorf("the disk had only %d bytes left", n)
	}
	if _, err := i.Pull(ctx, "example.com/fits:v1"); err != nil {
		t.Error(err)
	}
}

// smallDisk is one of 256 MiB.
func smallDisk(t *testing.T) (dir string) {
	dir, err := os.MkdirTemp("", "disk")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=256m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
		os.Remove(dir)
	})
	return dir
}

// tooLarge has images that a disk of 256 MiB has no room for, and one that fits.
func (h *hostile) tooLarge() {
	noise := make([]byte, 150<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	one := tarEntry('0', "one", string(noise))
	other := slices.Clone(one)
	other[1000]++
	large, diff := h.layer()
	large.Size = 250 << 20
	var zeros bytes.Buffer
	plain, diffs := sizedZeros(&zeros)
	sent := func() ocispec.Descriptor {
		layers := []ocispec.Descriptor{h.add(ocispec.MediaTypeImageLayer, one), h.add(ocispec.MediaTypeImageLayer, other)}
		return h.manifest(h.config(digest.FromBytes(one), digest.FromBytes(other)), layers...)
	}
	h.tags["described"] = h.manifest(h.config(diff), large)
	h.tags["sent"] = sent()
	h.tags["unpacked"] = h.manifest(h.config(diffs), h.add(ocispec.MediaTypeImageLayerZstd, zeros.Bytes()))
	hole, holes := sparseFile(1<<30), digest.FromBytes(sparseFile(1<<30))
	h.tags["holes"] = h.manifest(h.config(holes), h.add(ocispec.MediaTypeImageLayer, hole))
	var tail bytes.Buffer
	z, _ := zstd.NewWriter(&tail, zstd.WithWindowSize(1<<20), zstd.WithEncoderLevel(zstd.SpeedFastest))
	for range 100 {
		_, _ = z.Write(make([]byte, 1<<20))
	}
	_ = z.Close()
	h.tags["tail"] = h.manifest(h.config(digest.FromBytes(make([]byte, 100<<20))), h.add(ocispec.MediaTypeImageLayerZstd, tail.Bytes()))
	fits, diff := h.layer()
	h.tags["fits"] = h.manifest(h.config(diff), fits)
	if plain < 256<<20 {
		h.t.Fatalf("%d bytes are no more than the disk", plain)
	}
}

// sizedZeros packs a layer with a large file of zeros.
func sizedZeros(into io.Writer) (size int, of digest.Digest) {
	w, _ := zstd.NewWriter(into, zstd.WithWindowSize(1<<20), zstd.WithEncoderLevel(zstd.SpeedFastest))
	d := digest.Canonical.Digester()
	both := io.MultiWriter(w, d.Hash())
	const each, times = 1 << 20, 400
	n, _ := both.Write(tarBlock('0', "zeros", each*times, nil))
	size += n
	for range times {
		n, _ = both.Write(make([]byte, each))
		size += n
	}
	n, _ = both.Write(make([]byte, 1024))
	_ = w.Close()
	return size + n, d.Digest()
}

// sparseFile is a layer with a file of so many bytes, all but 512 of which are a hole.
func sparseFile(size int) []byte {
	b := tarBlock(tar.TypeGNUSparse, "sparse", 512, func(b []byte) {
		copy(b[386:], fmt.Sprintf("%011o\x00%011o\x00", 0, 512))
		copy(b[483:], fmt.Sprintf("%011o\x00", size))
	})
	return append(b, make([]byte, 512+1024)...)
}

// TestUnpackingEnds: what a layer contains ends with the pull.
func TestUnpackingEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	l := roomy(ctx, io.NopCloser(strings.NewReader("layer")))
	if n, err := l.Read(make([]byte, 2)); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	why := errors.New("called off")
	cancel(why)
	if _, err := l.Read(make([]byte, 2)); !errors.Is(err, why) {
		t.Error(err)
	}
}

// TestDiskRoomOf: what is kept of a disk, in bytes and in files.
func TestDiskRoomOf(t *testing.T) {
	for _, c := range []struct {
		name             string
		blocks, free     uint64 // of 4096 bytes
		files, filesFree uint64
		more             int64
		want             string
	}{
		{"large and empty", 1 << 26, 1 << 26, 1 << 20, 1 << 20, 200 << 30, ""},
		{"large, 1 GiB is left", 1 << 26, 1 << 18, 0, 0, 0, ""},
		{"large, less is left", 1 << 26, 1<<18 - 1, 0, 0, 0, "1023 MiB are free, of which 1024 are kept for the node, and 1 more are needed"},
		{"small", 1 << 18, 1 << 14, 0, 0, 12 << 20, ""},
		{"small, too much", 1 << 18, 1 << 14, 0, 0, 13 << 20, "64 MiB are free, of which 51 are kept for the node, and 13 more are needed"},
		{"files", 1 << 26, 1 << 26, 1000, 49, 0, "it can have 49 more files, and keeps 50 for the node"},
		{"files, enough", 1 << 26, 1 << 26, 1000, 50, 0, ""},
	} {
		room := diskRoom{"/", func(_ string, s *unix.Statfs_t) error {
			s.Frsize, s.Blocks, s.Bavail, s.Files, s.Ffree = 4096, c.blocks, c.free, c.files, c.filesFree
			return nil
		}}
		err := room.check(c.more)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := diskRoomOf("/does/not/exist").check(1); err != nil {
		t.Error(err)
	}
}
