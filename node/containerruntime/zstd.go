package containerruntime

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/typeurl/v2"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A windowClass is how many layers are unpacked at once whose zstd windows have up to a size
// in bytes. A decoder takes as much memory as its window has, which whoever made the layer
// says, and whoever may run a pod names it.
type windowClass struct {
	size   uint64
	places chan struct{}
}

// windowClasses, in the order of their sizes, have 192 MiB together. The first is for all levels of the
// builders of images and for zstd's up to 19, the second for the most that zstd itself makes
// and unpacks unless it is asked for more. containerd takes 512 MiB, any number of times.
var windowClasses = []windowClass{
	{8 << 20, make(chan struct{}, 8)},
	{128 << 20, make(chan struct{}, 1)},
}

// windowClassOf is the class of what begins so. In later frames it has no larger windows than
// the class has; of one that begins with a frame to be skipped nothing is known. Pure.
func windowClassOf(head []byte) windowClass {
	var h zstd.Header
	err := h.Decode(head)
	size := h.WindowSize
	if h.SingleSegment {
		size = h.FrameContentSize // there is no other
	}
	if common := windowClasses[0]; err == nil && !h.Skippable && size <= common.size {
		return common
	}
	return windowClasses[len(windowClasses)-1]
}

// A zstdReader unpacks zstd with bounds.
type zstdReader struct {
	decoder *zstd.Decoder // nil once it is closed
	class   windowClass
	free    func()
}

// openZstd unpacks r with windows of a class. free is called at the end, once.
func openZstd(r io.Reader, class windowClass, free func()) (io.ReadCloser, error) {
	d, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(class.size), zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(1))
	if err != nil {
		free()
		return nil, err
	}
	return &zstdReader{d, class, free}, nil
}

func (r *zstdReader) Read(p []byte) (int, error) {
	if r.decoder == nil {
		return 0, zstd.ErrDecoderClosed
	}
	n, err := r.decoder.Read(p)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		err = fmt.Errorf("compressed by zstd with a window of more than %d MiB, the most that is unpacked here: compress it with a smaller one: %w", r.class.size>>20, err)
	}
	return n, err
}

// Close gives the memory of a large window back before the next one takes its place: two or
// three of them would lie in the heap otherwise, as the collector waits for it to double.
func (r *zstdReader) Close() error {
	if r.decoder == nil {
		return nil
	}
	r.decoder.Close()
	r.decoder = nil
	if r.class.size > windowClasses[0].size {
		runtime.GC()
	}
	r.free()
	return nil
}

// A plainLayer is a layer as its compression is undone, with bounded headers.
type plainLayer struct{ io.ReadCloser }

func (plainLayer) MediaType() string { return ocispec.MediaTypeImageLayer }

// plainLayers has containerd unpack layers with bounds. It keeps one list for the whole
// process of what does so, and takes the last that is in it.
var plainLayers = sync.OnceFunc(func() { diff.RegisterProcessor(boundedLayers) })

// boundedLayers opens layers of all types that containerd unpacks. Of those that it takes for
// compressed it looks at how one begins, whatever it is called, and so is it here.
func boundedLayers(ctx context.Context, mediaType string) (diff.StreamProcessorInit, bool) {
	compressed, err := images.DiffCompression(ctx, mediaType)
	if compressed == "" {
		return openPlainLayer, err == nil
	}
	return openLayer, err == nil
}

func openPlainLayer(ctx context.Context, stream diff.StreamProcessor, _ map[string]typeurl.Any) (diff.StreamProcessor, error) {
	return plainLayer{layerHeaders(ctx, roomy(ctx, stream))}, nil
}

func openLayer(ctx context.Context, stream diff.StreamProcessor, _ map[string]typeurl.Any) (diff.StreamProcessor, error) {
	b := bufio.NewReader(stream)
	head, err := b.Peek(zstd.HeaderMaxSize)
	if err != nil && err != io.EOF {
		return nil, err
	}
	var plain io.ReadCloser
	if compression.DetectCompression(head) == compression.Zstd {
		class := windowClassOf(head)
		select {
		case class.places <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		plain, err = openZstd(b, class, func() { <-class.places })
	} else {
		plain, err = compression.DecompressStream(b)
	}
	if err != nil {
		return nil, err
	}
	return plainLayer{layerHeaders(ctx, roomy(ctx, plain))}, nil
}
