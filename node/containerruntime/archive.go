package containerruntime

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"io"

	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
)

// compressions are those that containerd does not know, by how they begin.
var compressions = []struct {
	magic string
	open  func(io.Reader) (io.Reader, error)
}{
	{"BZh", func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }},
	{"\x04\x22\x4d\x18", func(r io.Reader) (io.Reader, error) { return lz4.NewReader(r), nil }},
	{"\xfd7zXZ\x00", func(r io.Reader) (io.Reader, error) { return xz.NewReader(r) }},
}

// plainArchive gives what an archive of images contains, that is compressed by gzip, zstd,
// bzip2, lz4 or xz, or not at all. Its headers are bounded.
func plainArchive(r io.Reader) (io.ReadCloser, error) {
	plain, err := decompressed(r)
	if err != nil {
		return nil, err
	}
	return archiveHeaders(plain), nil
}

func decompressed(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReader(r)
	head, err := b.Peek(8)
	if err != nil && err != io.EOF {
		return nil, err
	}
	for _, c := range compressions {
		if bytes.HasPrefix(head, []byte(c.magic)) {
			plain, err := c.open(b)
			if err != nil {
				return nil, err
			}
			return io.NopCloser(plain), nil
		}
	}
	if compression.DetectCompression(head) == compression.Zstd {
		return openZstd(b, windowClasses[len(windowClasses)-1], func() {})
	}
	return compression.DecompressStream(b)
}
