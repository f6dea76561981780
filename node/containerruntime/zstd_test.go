package containerruntime

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"testing"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// zstdFrame is plain, of 128 KiB at most, as a frame of zstd that declares a window of 2^log
// bytes: RFC 8878, section 3.1.1.
func zstdFrame(log byte, plain []byte) []byte {
	last := 1 | len(plain)<<3 // as it is
	return append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3, byte(last), byte(last >> 8), byte(last >> 16)}, plain...)
}

// TestWindowClasses: what builders of images make has a place among eight, all else is
// unpacked one after the other.
func TestWindowClasses(t *testing.T) {
	skipped := []byte{0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4}
	single := func(size byte) []byte { return []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, size, 0} } // of size times 64 KiB
	for name, c := range map[string]struct {
		in   []byte
		want uint64 // MiB
	}{
		"1 KiB":                  {zstdFrame(10, nil), 8},
		"8 MiB":                  {zstdFrame(23, nil), 8},
		"16 MiB":                 {zstdFrame(24, nil), 128},
		"512 MiB":                {zstdFrame(29, nil), 128},
		"without a window":       {single(128), 8},
		"without a window, more": {single(129), 128},
		"skipped":                {append(skipped, zstdFrame(10, nil)...), 128},
		"cut off":                {zstdFrame(10, nil)[:5], 128},
	} {
		if got := windowClassOf(c.in); got.size != c.want<<20 {
			t.Errorf("%s: %d MiB", name, got.size>>20)
		}
	}
	for level := zstd.SpeedFastest; level <= zstd.SpeedBestCompression; level++ {
		var b bytes.Buffer
		z, err := zstd.NewWriter(&b, zstd.WithEncoderLevel(level))
		if err == nil {
			_, err = io.Copy(z, io.LimitReader(zeros{}, 20<<20))
			err = errors.Join(err, z.Close())
		}
		if got := windowClassOf(b.Bytes()); err != nil || got.size != 8<<20 {
			t.Errorf("what is compressed at level %v: %d MiB, %v", level, got.size>>20, err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestLayersUnpackedAtOnce: layers whose windows are large wait for one another, and whoever
// is no longer interested in one waits no more.
func TestLayersUnpackedAtOnce(t *testing.T) {
	plainLayers()
	open := func(ctx context.Context, log byte) (diff.StreamProcessor, error) {
		return diff.GetProcessor(ctx, diff.NewProcessorChain(ocispec.MediaTypeImageLayerGzip, bytes.NewReader(zstdFrame(log, []byte("hello")))), nil)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for log, most := range map[byte]int{23: 8, 27: 1} {
		for range 3 { // whatever is closed has a place no more
			var opened []diff.StreamProcessor
			for range most {
				p, err := open(t.Context(), log)
				if err != nil {
					t.Fatal(err)
				}
				opened = append(opened, p)
			}
			for range 50 { // one that has both a place and no time left takes either
				if _, err := open(ended, log); !errors.Is(err, context.Canceled) {
					t.Fatalf("window of 2^%d bytes: more than %d at once, %v", log, most, err)
				}
			}
			for _, p := range opened {
				if b, err := io.ReadAll(p); string(b) != "hello" || err != nil {
					t.Errorf("window of 2^%d bytes: %q, %v", log, b, err)
				}
				for range 2 { // frees one place
					if err := p.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		}
	}
}

// TestLargeWindowIsGivenBack: what a large window took is no longer in the heap when the next
// layer with such a one is unpacked.
func TestLargeWindowIsGivenBack(t *testing.T) {
	plainLayers()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p, err := diff.GetProcessor(t.Context(), diff.NewProcessorChain(ocispec.MediaTypeImageLayerZstd, bytes.NewReader(zstdFrame(27, []byte("hello")))), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(p); string(b) != "hello" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if took, left := after.TotalAlloc-before.TotalAlloc, int64(after.HeapAlloc)-int64(before.HeapAlloc); took < 128<<20 || left > 16<<20 {
		t.Errorf("%d MiB are left of %d MiB", left>>20, took>>20)
	}
	if _, err := p.Read(make([]byte, 1)); !errors.Is(err, zstd.ErrDecoderClosed) {
		t.Error(err)
	}
}
