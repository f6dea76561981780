package containerruntime

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// tarBlock is a header as it is written, in the format of GNU: with change, it may be one that
// archive/tar does not write.
func tarBlock(kind byte, name string, size int64, change func(b []byte)) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], fmt.Sprintf("%07o\x00%07o\x00%07o\x00%011o\x00%011o\x00", 0o755, 0, 0, size, 0))
	b[156] = kind
	copy(b[257:], "ustar  \x00")
	if kind == tar.TypeXHeader || kind == tar.TypeXGlobalHeader {
		copy(b[257:], "ustar\x0000")
	}
	if change != nil {
		change(b)
	}
	withSum(b)
	return b
}

// withSum writes the sum of a header.
func withSum(b []byte) {
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00", sum))
}

// tarEntry is an entry with its data.
func tarEntry(kind byte, name string, data string) []byte {
	b := append(tarBlock(kind, name, int64(len(data)), nil), data...)
	return append(b, make([]byte, -len(b)&511)...)
}

// paxRecord is a record of an extended header.
func paxRecord(key, value string) string {
	n := len(key) + len(value) + 3
	for n != len(key)+len(value)+3+len(fmt.Sprint(n)) {
		n = len(key) + len(value) + 3 + len(fmt.Sprint(n))
	}
	return fmt.Sprintf("%d %s=%s\n", n, key, value)
}

// sparse is the header of a sparse file in GNU's old format, whose map takes further blocks.
func sparse(blocks int) []byte {
	b := tarBlock(tar.TypeGNUSparse, "sparse", 512, func(b []byte) {
		copy(b[386:], fmt.Sprintf("%011o\x00%011o\x00", 0, 512))
		copy(b[483:], fmt.Sprintf("%011o\x00", 512))
		b[482] = byte(min(1, blocks))
	})
	for i := range blocks {
		more := make([]byte, 512)
		if i < blocks-1 {
			more[504] = 1
		}
		b = append(b, more...)
	}
	return append(b, make([]byte, 512)...)
}

// sparse1x0 is a sparse file of version 1.0, whose map is in its data, with so many holes.
func sparse1x0(holes int) []byte {
	var m strings.Builder
	fmt.Fprintf(&m, "%d\n", holes)
	for i := range holes {
		fmt.Fprintf(&m, "%d\n0\n", i)
	}
	data := m.String() + strings.Repeat("\x00", -m.Len()&511)
	head := paxRecord("GNU.sparse.major", "1") + paxRecord("GNU.sparse.minor", "0") + paxRecord("GNU.sparse.name", "sparse") +
		paxRecord("GNU.sparse.realsize", fmt.Sprint(holes))
	return append(tarEntry(tar.TypeXHeader, "x", head), tarEntry(tar.TypeReg, "GNUSparseFile.0/sparse", data)...)
}

// pieces are parts of archives that read so, for tests and seeds.
func pieces() map[string][]byte {
	x := func(kind byte, records string) []byte { return tarEntry(kind, "x", records) }
	follows := tarEntry(tar.TypeReg, "follows", "text")
	return map[string][]byte{
		"nothing":          {},
		"file":             tarEntry(tar.TypeReg, "file", strings.Repeat("text", 1000)),
		"file, one byte":   tarEntry(tar.TypeReg, "file", "1"),
		"file, two blocks": tarEntry(tar.TypeReg, "file", strings.Repeat("1", 1024)),
		"old file":         tarEntry(tar.TypeRegA, "dir/", "text"),
		"file, as old":     tarEntry(tar.TypeReg, "dir/", "text"),
		"directory":        tarEntry(tar.TypeDir, "dir/", ""),
		"sized directory":  slices.Concat(tarBlock(tar.TypeDir, "dir/", 4096, nil), follows),
		"sized link":       slices.Concat(tarBlock(tar.TypeLink, "link", 4096, func(b []byte) { copy(b[157:], "file") }), follows),
		"whiteout":         tarEntry(tar.TypeReg, "dir/.wh.file", ""),
		"long name":        slices.Concat(tarEntry(tar.TypeGNULongName, "L", strings.Repeat("d/", 1000)+"f\x00"), follows),
		"long link":        slices.Concat(tarEntry(tar.TypeGNULongLink, "K", strings.Repeat("d/", 1000)+"f\x00"), tarEntry(tar.TypeSymlink, "link", "")),
		"size, base 256": slices.Concat(tarBlock(tar.TypeReg, "file", 0, func(b []byte) {
			copy(b[124:136], "\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x01")
		}), make([]byte, 1024), follows),
		"size, short":        slices.Concat(tarBlock(tar.TypeReg, "file", 0, func(b []byte) { copy(b[124:136], " 1000 \x00\x00\x00\x00\x00\x00") }), make([]byte, 512), follows),
		"size, of 12 digits": slices.Concat(tarBlock(tar.TypeReg, "file", 0, func(b []byte) { copy(b[124:136], "000000010001") }), make([]byte, 4608), follows),
		"size, broken":       slices.Concat(tarBlock(tar.TypeReg, "file", 0, func(b []byte) { copy(b[124:136], "0000000800 \x00") }), follows),
		"size, one and more": slices.Concat(x('x', paxRecord("size", "1")), tarBlock(tar.TypeReg, "file", 1024, nil), make([]byte, 512), follows),
		"size, by PAX, link": slices.Concat(x('x', paxRecord("size", "1024")), tarBlock(tar.TypeSymlink, "link", 1024, nil), follows),
		"global, full":       slices.Concat(x('g', paxRecord("comment", strings.Repeat("a", 498))), follows),
		"device":             slices.Concat(tarBlock(tar.TypeChar, "device", 1024, nil), follows),
		"unknown":            tarEntry('Z', "unknown", "text"),
		"size, negative":     tarBlock(tar.TypeReg, "file", 0, func(b []byte) { copy(b[124:136], bytes.Repeat([]byte{0xff}, 12)) }),
		"size, largest":      tarBlock(tar.TypeReg, "file", 0, func(b []byte) { copy(b[124:136], "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff") }),
		"size, too large":    tarBlock(tar.TypeReg, "file", 0, func(b []byte) { copy(b[124:136], "\x80\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff") }),
		"size, by PAX":       slices.Concat(x('x', paxRecord("size", "1024")), tarBlock(tar.TypeReg, "file", 1, nil), follows, follows),
		"size, by PAX, none": slices.Concat(x('x', paxRecord("size", "0")), tarBlock(tar.TypeReg, "file", 1024, nil), follows),
		"size, by PAX, bad":  slices.Concat(x('x', paxRecord("size", "-5")), tarBlock(tar.TypeReg, "file", 1024, nil), follows),
		"size, by global":    slices.Concat(x('g', paxRecord("size", "1024")), follows, follows),
		"size, by the other": slices.Concat(x('x', paxRecord("size", "1024")), x('x', paxRecord("comment", "a")), follows, follows),
		"extended attribute": slices.Concat(x('x', paxRecord("SCHILY.xattr.user.a", "b")+paxRecord("mtime", "1.5")), follows),
		"record, broken":     slices.Concat(x('x', "7 a=b"), follows),
		"sparse":             sparse(0),
		"sparse, more":       slices.Concat(sparse(3), follows),
		"sparse, 0.0": slices.Concat(x('x', paxRecord("GNU.sparse.size", "100")+paxRecord("GNU.sparse.numblocks", "1")+
			paxRecord("GNU.sparse.offset", "50")+paxRecord("GNU.sparse.numbytes", "4")), tarEntry(tar.TypeReg, "sparse", "text"), follows),
		"sparse, 0.1": slices.Concat(x('x', paxRecord("GNU.sparse.size", "100")+paxRecord("GNU.sparse.numblocks", "1")+
			paxRecord("GNU.sparse.map", "50,4")+paxRecord("size", "4")), tarEntry(tar.TypeReg, "sparse", "text"), follows),
		"sparse, 1.0":        slices.Concat(sparse1x0(300), follows),
		"end, then garbage":  slices.Concat(make([]byte, 1024), []byte("garbage"), follows),
		"zeros, then a file": slices.Concat(make([]byte, 512), follows),
		"cut off":            follows[:514],
		"cut off in a block": follows[:500],
		"garbage":            []byte(strings.Repeat("garbage", 100)),
	}
}

// A counted reader counts what is read.
type counted struct {
	io.Reader
	n int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

func (c *counted) Close() error { return nil }

// headersOf says of what kind the entries of an archive are, where their headers end, and
// whether it is one up to its end.
func headersOf(b []byte) (all []string, whole bool) {
	c := &counted{Reader: bytes.NewReader(b)}
	for t := tar.NewReader(struct{ io.Reader }{c}); ; {
		h, err := t.Next()
		if err != nil {
			return all, err == io.EOF
		}
		all = append(all, fmt.Sprintf("%d %c", c.n, h.Typeflag))
	}
}

// agree reports where a headerReader passes on something else than it is given, or sees
// other headers than archive/tar. It says whether the archive was refused.
func agree(t *testing.T, b []byte, how func(io.Reader) io.Reader) (refusal error) {
	t.Helper()
	c := &counted{Reader: bytes.NewReader(b)}
	var seen []string
	r := boundedHeaders(c, func(kind byte) bool {
		seen = append(seen, fmt.Sprintf("%d %c", c.n, kind))
		return true
	}, func() error { return nil }, func(int64) error { return nil })
	defer r.Close()
	got, err := io.ReadAll(how(r))
	want, complete := headersOf(b)
	if !complete { // nobody looks for headers in what follows an error
		seen = seen[:min(len(seen), len(want))]
	}
	if errdefs.IsInvalidArgument(err) {
		if !bytes.HasPrefix(b, got) || len(want) < len(seen) || !slices.Equal(seen, want[:len(seen)]) {
			t.Errorf("refused after %d bytes and %q: %v", len(got), seen, err)
		}
		return err
	}
	if err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes of %d: %v", len(got), len(b), err)
	}
	if !slices.Equal(seen, want) {
		t.Errorf("headers seen:\n%q\nof archive/tar:\n%q", seen, want)
	}
	return nil
}

// TestHeadersAgree: the headers that are bounded are those that archive/tar reads, however the
// archive says where they are.
func TestHeadersAgree(t *testing.T) {
	all := pieces()
	whole := func(r io.Reader) io.Reader { return r }
	for first, a := range all {
		for second, b := range all {
			if err := agree(t, slices.Concat(a, b), whole); err != nil || t.Failed() {
				t.Fatalf("%s, %s: %v", first, second, err)
			}
		}
		if err := agree(t, slices.Concat(a, all["file"]), iotest.OneByteReader); err != nil || t.Failed() {
			t.Fatalf("%s, byte by byte: %v", first, err)
		}
	}
}

// TestHeadersAreBounded: whatever an entry has before its data is bounded as a whole.
func TestHeadersAreBounded(t *testing.T) {
	large := strings.Repeat("a", 200<<10)
	var records strings.Builder
	for i := range 20_000 {
		records.WriteString(paxRecord(fmt.Sprint(i), ""))
	}
	follows := tarEntry(tar.TypeDir, "dir/", "")
	for name, c := range map[string]struct {
		in   []byte
		want string
	}{
		"extended header": {tarEntry('x', "x", paxRecord("comment", large)), "of more than 131072 bytes for one entry, after \"before\""},
		"many records":    {tarEntry('x', "x", records.String()), "of more than 131072 bytes for one entry"},
		"global header":   {tarEntry('g', "g", paxRecord("comment", large)), "of more than 131072 bytes for one entry"},
		"long name":       {tarEntry('L', "L", large), "of more than 131072 bytes for one entry"},
		"long link":       {tarEntry('K', "K", large), "of more than 131072 bytes for one entry"},
		"many headers":    {bytes.Repeat(tarEntry('x', "x", paxRecord("comment", "a")), 200), "of more than 131072 bytes for one entry"},
		"sparse":          {sparse(500), "of more than 131072 bytes for one entry"},
		"sparse, 1.0":     {sparse1x0(20_000), "of more than 131072 bytes for one entry"},
		"path":            {tarEntry('L', "L", strings.Repeat("d/", 2500)), "path of 5000 bytes, longer than 4096 bytes, at \"d/d/"},
		"link":            {tarEntry('K', "K", large[:4097]), "path of 4097 bytes, longer than 4096 bytes"},
		"attribute":       {tarEntry('x', "x", paxRecord("SCHILY.xattr.user.a", large[:64<<10])), ""},
		"longest path":    {tarEntry('L', "L", large[:4096]), ""},
		"fewer holes":     {sparse1x0(5000), ""},
	} {
		err := agree(t, slices.Concat(tarEntry(tar.TypeReg, "before", "text"), c.in, follows), func(r io.Reader) io.Reader { return r })
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// endless is what many entries of an archive are.
type endless struct {
	of   func(i int) []byte
	i    int
	left []byte
}

func (e *endless) Read(p []byte) (int, error) {
	if len(e.left) == 0 {
		e.left = e.of(e.i)
		e.i++
	}
	n := copy(p, e.left)
	e.left = e.left[n:]
	return n, nil
}

// attributes is an extended header with many of them.
func attributes() []byte {
	var records strings.Builder
	for i := range 5000 {
		records.WriteString(paxRecord("SCHILY.xattr."+fmt.Sprint(i), ""))
	}
	return tarEntry('x', "x", records.String())
}

// TestEntriesAreBounded: an archive of entries any of which could be is refused before what
// is kept of them fills the memory.
func TestEntriesAreBounded(t *testing.T) {
	plainLayers()
	follows := tarEntry(tar.TypeDir, "dir/", "")
	for name, c := range map[string]struct {
		piece      []byte
		most, want int // entries
	}{
		"large directories": {slices.Concat(tarEntry('x', "x", paxRecord("comment", strings.Repeat("a", 120<<10))), follows), 4400, 4200},
		"many records":      {slices.Concat(attributes(), follows), 600, 550},
		"long paths":        {slices.Concat(tarEntry('L', "L", strings.Repeat("a", 4096)), tarEntry(tar.TypeReg, "file", "")), 132_000, 125_000},
	} {
		e := &endless{of: func(int) []byte { return c.piece }}
		p, err := diff.GetProcessor(t.Context(), diff.NewProcessorChain(ocispec.MediaTypeImageLayer, e), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, io.LimitReader(p, 2<<30))
		if err == nil || !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "take more than 512 MiB") || e.i > c.most || e.i < c.want {
			t.Errorf("%s: %d entries, %v", name, e.i, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestKeptIsCounted: what containerd keeps of entries is no more than is counted.
func TestKeptIsCounted(t *testing.T) {
	below := "/var/lib/knarr/agent/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/12345/fs/"
	for name, c := range map[string]struct {
		head []byte
		kind byte
		n    int
	}{
		"files":        {nil, tar.TypeReg, 20_000},
		"directories":  {nil, tar.TypeDir, 20_000},
		"times":        {tarEntry('x', "x", paxRecord("mtime", "1.5")), tar.TypeDir, 20_000},
		"half a block": {tarEntry('x', "x", paxRecord("comment", strings.Repeat("a", 480))), tar.TypeDir, 20_000},
		"attributes":   {attributes(), tar.TypeDir, 30},
	} {
		e := &endless{of: func(i int) []byte { return slices.Concat(c.head, tarBlock(c.kind, fmt.Sprint("entry", i), 0, nil)) }}
		isDir := func(kind byte) bool { return kind == tar.TypeDir }
		r := boundedHeaders(&counted{Reader: e}, isDir, func() error { return nil }, func(int64) error { return nil })
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var dirs []*tar.Header
		paths := map[string]struct{}{}
		for tr := tar.NewReader(r); len(paths) < c.n; {
			h, err := tr.Next()
			if err != nil {
				t.Fatal(err)
			}
			if paths[below+h.Name] = struct{}{}; isDir(h.Typeflag) {
				dirs = append(dirs, h)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		got := int(after.HeapAlloc - before.HeapAlloc)
		t.Logf("%s: %d bytes of an entry, %d counted", name, got/c.n, r.kept/c.n)
		if got > r.kept {
			t.Errorf("%s: %d bytes are kept, %d counted", name, got, r.kept)
		}
		runtime.KeepAlive(dirs)
		runtime.KeepAlive(paths)
		_ = r.Close()
	}
}

// TestLargeLayersAtOnce: of layers of which much is kept one is unpacked at a time, and
// whoever is no longer interested in one waits no more.
func TestLargeLayersAtOnce(t *testing.T) {
	plainLayers()
	dir := slices.Concat(attributes(), tarEntry(tar.TypeDir, "dir/", ""))
	const large = 50 // directories
	read := func(ctx context.Context, dirs int) (diff.StreamProcessor, error) {
		b := bytes.NewReader(bytes.Repeat(dir, dirs))
		p, err := diff.GetProcessor(ctx, diff.NewProcessorChain(images.MediaTypeDockerSchema2Layer, b), nil)
		if err == nil {
			_, err = io.Copy(io.Discard, p)
		}
		return p, err
	}
	for range 2 {
		first, err := read(t.Context(), large)
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		second, err := read(short, large)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("two at once: %v", err)
		}
		small, err := read(t.Context(), large/2)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []diff.StreamProcessor{second, small} {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		for range 2 { // frees one place
			if err := first.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
