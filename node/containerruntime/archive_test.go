package containerruntime

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func TestPlainArchive(t *testing.T) {
	zipped := func(make func(io.Writer) io.WriteCloser) []byte {
		var b bytes.Buffer
		w := make(&b)
		if _, err := io.WriteString(w, "hello\n"); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	bzip2ed, err := base64.StdEncoding.DecodeString("QlpoOTFBWSZTWcHAgOIAAAFBAAAQAkSgADDNAMNGKZcXckU4UJDBwIDi")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		in  []byte
		bad string
	}{
		"plain": {[]byte("hello\n"), ""},
		"gzip":  {zipped(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }), ""},
		"zstd": {zipped(func(w io.Writer) io.WriteCloser {
			z, err := zstd.NewWriter(w)
			if err != nil {
				t.Fatal(err)
			}
			return z
		}), ""},
		"bzip2": {bzip2ed, ""},
		"lz4":   {[]byte("\x04\x22\x4d\x18rest"), "compressed by lz4"},
		"xz":    {[]byte("\xfd7zXZ\x00rest"), "compressed by xz"},
	} {
		r, err := plainArchive(bytes.NewReader(c.in))
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if b, err := io.ReadAll(r); string(b) != "hello\n" || err != nil {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		_ = r.Close()
	}
}
