package containerruntime

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	// maxHeaders bounds all that is read of one entry before its data: extended headers, long
	// names and maps of sparse files, each of which archive/tar takes a mebibyte of, any number
	// of times. An extended attribute of the largest size that Linux has is half of it.
	maxHeaders = 128 << 10
	// maxPath is how long Linux takes paths.
	maxPath = 4096
	// maxTail bounds what may follow the end of an archive, or of what is none: it is read to
	// the end.
	maxTail = 16 << 20
	// largeKept is from where on layers are unpacked one after the other.
	largeKept = 32 << 20
)

// maxKept bounds what containerd keeps of an archive's entries until the last of them: all
// paths, and the headers of directories. A million files with paths of a hundred bytes take
// 256 MiB. An eighth of the machine's memory is not too much for one layer at a time, since
// this process has the control plane in it.
var maxKept = sync.OnceValue(func() int {
	const most = 512 << 20
	var machine unix.Sysinfo_t
	if unix.Sysinfo(&machine) != nil {
		return most
	}
	return int(min(uint64(machine.Totalram)*uint64(machine.Unit)/8, most))
})

// largeLayers has the place for the layer that is being unpacked of which much is kept.
var largeLayers = make(chan struct{}, 1)

// A headerReader passes on a tar archive whose headers are within bounds, and an error instead
// of the first header that is not. Whoever makes an image says how large they are, and
// containerd keeps those of all directories of a layer at once.
//
// Where headers are says archive/tar, by which the archive is read afterwards, too: the header
// of an entry is whatever a tar.Reader of our own reads for it, so that no archive shows one
// thing here and another there. Only an entry whose header is one block that can be read in
// one way is read here, since most are, and reading them twice would take a twentieth of the time
// that unpacking takes. The data of entries goes to whoever reads this uncopied.
type headerReader struct {
	plain io.ReadCloser
	keeps func(kind byte) bool // are the headers of such entries kept
	large func() error         // waits for the place of a large one
	hole  func(n int64) error  // may so many bytes be made of nothing

	block  [512]byte
	read   []byte // of the last entry's headers
	header []byte // of these, what is to be passed on
	data   int64  // that is to be passed on then
	err    error  // that is to be given then: a refusal, or what came of reading the archive
	over   bool   // the archive is, or what is none any longer
	kept   int    // bytes
	last   []byte // how the last entry's path begins
}

// boundedHeaders bounds the headers of an archive. keeps says of which entries they are kept;
// large is called once, before more than largeKept bytes are; hole before a sparse file with
// holes of n bytes.
func boundedHeaders(plain io.ReadCloser, keeps func(kind byte) bool, large func() error, hole func(n int64) error) *headerReader {
	return &headerReader{plain: plain, keeps: keeps, large: large, hole: hole}
}

func (r *headerReader) Read(p []byte) (int, error) {
	for len(p) > 0 {
		switch {
		case len(r.header) > 0:
			n := copy(p, r.header)
			r.header = r.header[n:]
			return n, nil
		case r.err != nil:
			return 0, r.err
		case r.data > 0:
			n, err := r.plain.Read(p[:min(int64(len(p)), r.data)])
			r.data -= int64(n)
			return n, err
		case r.over:
			r.err = fmt.Errorf("archive with more than %d bytes after its end: %w", int64(maxTail), errdefs.ErrInvalidArgument)
			return 0, r.err
		}
		r.next()
	}
	return 0, nil
}

// Close has plain answer whoever reads on.
func (r *headerReader) Close() error {
	r.header, r.data, r.err = nil, math.MaxInt64, nil
	return r.plain.Close()
}

// next reads the headers of the next entry. What is none, or the end, is passed on with all
// that follows: containerd has the words.
func (r *headerReader) next() {
	r.read = r.read[:0]
	s := &headerSource{headerReader: r}
	data, err := int64(maxTail), error(nil)
	r.over = true
	if _, cut := io.ReadFull(s, r.block[:]); cut == nil {
		var ok bool
		if data, ok = simple(&r.block); ok {
			r.over = false
			name, _, _ := bytes.Cut(r.block[:100], []byte{0})
			prefix, _, _ := bytes.Cut(r.block[345:500], []byte{0})
			err = r.check(r.block[156], name, len(prefix)+1+len(name), 0)
		} else {
			data, r.over, err = s.entry()
		}
	}
	if err != nil {
		r.err = err
		return
	}
	r.header, r.data = r.read, data
	if !r.over && data < math.MaxInt64-512 {
		r.data += -(int64(len(r.read)) + data) & 511
	}
}

// simple is how much data follows a header, if it is one of those that can be read in one way:
// of a file, a link or a directory, whose size is octal and fills its place.
func simple(block *[512]byte) (size int64, ok bool) {
	for _, c := range block[124:135] {
		if c < '0' || c > '7' {
			return 0, false
		}
		size = size<<3 | int64(c-'0')
	}
	if end := block[135]; end != 0 && end != ' ' {
		return 0, false
	}
	switch block[156] {
	case tar.TypeReg:
		return size, true
	case tar.TypeLink, tar.TypeSymlink, tar.TypeDir:
		return 0, true // whatever they say
	}
	return 0, false
}

// check refuses an entry that is too much, with the headers that were read for it. path is how
// long the longer of its paths is, records what the extended ones take.
func (r *headerReader) check(kind byte, name []byte, path, records int) error {
	r.last = append(r.last[:0], name[:min(len(name), 60)]...)
	if path > maxPath {
		return fmt.Errorf("archive with a path of %d bytes, longer than %d bytes, at %q: %w", path, maxPath, r.last, errdefs.ErrInvalidArgument)
	}
	before := r.kept
	// A path is kept below its directory on the disk, in a map.
	if r.kept += path + 160; r.keeps(kind) {
		r.kept += len(r.read) + records
	}
	if r.kept > maxKept() {
		return fmt.Errorf("archive with so many entries that their paths and the headers of directories take more than %d MiB, at %q: %w", maxKept()>>20, r.last, errdefs.ErrInvalidArgument)
	}
	if before <= largeKept && r.kept > largeKept {
		return r.large()
	}
	return nil
}

// A headerSource is what the headers of one entry are read from: what was read of them, then
// the archive. Once they have been read, it ends, and counts the data that is sought past.
type headerSource struct {
	*headerReader
	at      int // in what was read
	refusal error
	ended   bool
	data    int64
}

func (s *headerSource) Read(p []byte) (n int, err error) {
	switch {
	case s.ended:
		return 0, io.EOF
	case s.at < len(s.read):
		n = copy(p, s.read[s.at:])
	case s.at == maxHeaders:
		s.refusal = fmt.Errorf("archive with headers of more than %d bytes for one entry, after %q: %w", maxHeaders, s.last, errdefs.ErrInvalidArgument)
		return 0, s.refusal
	default:
		n, err = s.plain.Read(p[:min(len(p), maxHeaders-s.at)])
		s.read = append(s.read, p[:n]...)
		s.err = err
	}
	s.at += n
	return n, err
}

// Seek is asked where it is, which is taken for the beginning, then for the last byte of the
// data, by which archive/tar finds out whether there is all of it.
func (s *headerSource) Seek(by int64, _ int) (int64, error) {
	if !s.ended {
		return 0, errors.ErrUnsupported // what is read for a header counts
	}
	s.data += by
	return by, nil
}

// entry has archive/tar read the headers of an entry, and gives how much data follows, and
// whether there is none any longer. It returns only what is refused as an error.
func (s *headerSource) entry() (data int64, over bool, err error) {
	s.at = 0
	t := tar.NewReader(s)
	h, err := t.Next()
	if err != nil {
		return maxTail, true, s.refusal
	}
	// A record has places in two maps if it is an extended attribute.
	if err := s.check(h.Typeflag, []byte(h.Name), max(len(h.Name), len(h.Linkname)), 160*len(h.PAXRecords)); err != nil {
		return 0, false, err
	}
	s.ended = true
	if _, err := t.Next(); err != io.EOF {
		data = s.data + 1
	} // else there is no data that would be missed
	if hole := h.Size - data; hole > 0 && (h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeGNUSparse) {
		if err := s.hole(hole); err != nil {
			return 0, false, fmt.Errorf("%w, at %q", err, s.last)
		}
	}
	return data, false, nil
}

// layerHeaders bounds the headers of a layer.
func layerHeaders(ctx context.Context, plain *roomyLayer) io.ReadCloser {
	l := &layerReader{}
	l.headerReader = boundedHeaders(plain, func(kind byte) bool { return kind == tar.TypeDir }, func() error {
		select {
		case largeLayers <- struct{}{}:
			l.large = true
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}, plain.hole)
	return l
}

// A layerReader has the place of a large layer, if it needs it.
type layerReader struct {
	*headerReader
	large bool
}

// Close gives back what was kept of a large layer before the next one takes its place.
func (l *layerReader) Close() error {
	err := l.headerReader.Close()
	if l.large {
		l.large = false
		runtime.GC()
		<-largeLayers
	}
	return err
}

// archiveHeaders bounds the headers of an archive of images. Those of all entries are kept with
// their names.
func archiveHeaders(plain io.ReadCloser) io.ReadCloser {
	return boundedHeaders(plain, func(byte) bool { return true }, func() error { return nil }, func(int64) error { return nil })
}
