package containerruntime

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
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
	lz4ed := zipped(func(w io.Writer) io.WriteCloser { return lz4.NewWriter(w) })
	xzed := zipped(func(w io.Writer) io.WriteCloser {
		x, err := xz.NewWriter(w)
		if err != nil {
			t.Fatal(err)
		}
		return x
	})
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
		"bzip2":                         {bzip2ed, ""},
		"lz4":                           {lz4ed, ""},
		"xz":                            {xzed, ""},
		"zstd, largest window":          {zstdFrame(27, []byte("hello\n")), ""},
		"zstd, too large a window":      {zstdFrame(29, []byte("hello\n")), "a window of more than 128 MiB"},
		"zstd, too large a window, two": {append(zstdFrame(10, []byte("hello\n")), zstdFrame(28, []byte("hello\n"))...), "a window of more than 128 MiB"},
		"lz4, broken":                   {[]byte("\x04\x22\x4d\x18rest"), "lz4: "},
		"lz4, cut off":                  {lz4ed[:len(lz4ed)-6], "unexpected EOF"},
		"xz, broken":                    {[]byte("\xfd7zXZ\x00resting here"), "xz: "},
		"xz, cut off":                   {xzed[:len(xzed)-6], "unexpected EOF"},
	} {
		r, err := plainArchive(bytes.NewReader(c.in))
		var b []byte
		if err == nil {
			b, err = io.ReadAll(r)
			_ = r.Close()
		}
		switch {
		case c.bad != "" && (err == nil || !strings.Contains(err.Error(), c.bad)), c.bad == "" && (err != nil || string(b) != "hello\n"):
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// TestPlainArchiveHeaders: those of an archive of images are bounded, too.
func TestPlainArchiveHeaders(t *testing.T) {
	r, err := plainArchive(bytes.NewReader(tarEntry('x', "x", paxRecord("comment", strings.Repeat("a", 200<<10)))))
	if err == nil {
		_, err = io.ReadAll(r)
	}
	if err == nil || !strings.Contains(err.Error(), "headers of more than 131072 bytes for one entry") {
		t.Error(err)
	}
}
