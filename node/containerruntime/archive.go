package containerruntime

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/pkg/archive/compression"
)

// foreignCompressions are those that nothing here can read, by how they begin.
var foreignCompressions = map[string]string{"\x04\x22\x4d\x18": "lz4", "\xfd7zXZ\x00": "xz"}

// plainArchive gives what an archive contains, that is compressed by gzip, zstd or bzip2, or
// not at all.
func plainArchive(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReader(r)
	head, err := b.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	for magic, name := range foreignCompressions {
		if bytes.HasPrefix(head, []byte(magic)) {
			return nil, fmt.Errorf("it is compressed by %s, which is not known here; compress it by zstd, gzip or bzip2", name)
		}
	}
	if bytes.HasPrefix(head, []byte("BZh")) {
		return io.NopCloser(bzip2.NewReader(b)), nil
	}
	return compression.DecompressStream(b)
}
