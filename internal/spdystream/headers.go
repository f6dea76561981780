package spdystream

import (
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// Bounds of a block of headers. A byte on the wire can stand for a thousand, and a byte
// of a value for a value of its own, which takes twenty.
const (
	maxNames  = 64
	maxValues = 256
	maxBlock  = 64 << 10
	// valueCost is what a name or a value takes besides its bytes.
	valueCost = 100
	// maxTail is what may be left of a block's bytes once its headers are read: the mark
	// by which the sender's compressor ended it.
	maxTail = 16
)

// A protocolError is one of the peer's, and ends the connection.
type protocolError string

func (e protocolError) Error() string { return "SPDY: " + string(e) }

// An inflater reads the blocks of headers of one connection, which are one zlib stream.
// It takes 40 kB from the first block on.
type inflater struct {
	source source
	z      io.Reader
	left   int // what the block may still inflate to
}

// A source is what the inflater has not read yet of the blocks that are here.
type source []byte

func (s *source) Read(b []byte) (int, error) {
	if len(*s) == 0 {
		return 0, io.EOF
	}
	n := copy(b, *s)
	*s = (*s)[n:]
	return n, nil
}

// ReadByte keeps zlib from putting a buffer before it.
func (s *source) ReadByte() (byte, error) {
	if len(*s) == 0 {
		return 0, io.EOF
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b, nil
}

// headers reads one block, and says how much memory the headers take.
func (f *inflater) headers(block []byte) (http.Header, int, error) {
	f.source = append(f.source, block...)
	defer func() { f.source = slices.Clone(f.source) }() // the block is not held
	f.left = maxBlock
	if f.z == nil {
		z, err := zlib.NewReaderDict(&f.source, dictionary())
		if err != nil {
			return nil, 0, protocolError("headers are not compressed by zlib with SPDY's dictionary: " + err.Error())
		}
		f.z = z
	}
	names, err := f.number()
	if err != nil {
		return nil, 0, err
	}
	if names > maxNames {
		return nil, 0, protocolError(fmt.Sprintf("%d headers in a block; %d are the most", names, maxNames))
	}
	h, values := make(http.Header, names), 0
	for range names {
		name, err := f.text()
		if err != nil {
			return nil, 0, err
		}
		value, err := f.text()
		if err != nil {
			return nil, 0, err
		}
		if name == "" || name != strings.ToLower(name) {
			return nil, 0, protocolError("the name of a header is empty, or not in lower case")
		}
		if values += strings.Count(value, "\x00") + 1; values > maxValues {
			return nil, 0, protocolError(fmt.Sprintf("the headers of a block have more than %d values", maxValues))
		}
		for v := range strings.SplitSeq(value, "\x00") {
			h.Add(name, v)
		}
	}
	if len(f.source) > maxTail {
		return nil, 0, protocolError("a block is longer than its headers")
	}
	return h, maxBlock - f.left + valueCost*(int(names)+values), nil
}

func (f *inflater) number() (uint32, error) {
	var b [4]byte
	if err := f.read(b[:]); err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint32(b[:]), nil
}

func (f *inflater) text() (string, error) {
	n, err := f.number()
	if err != nil {
		return "", err
	}
	if int64(n) > int64(f.left) {
		return "", protocolError(fmt.Sprintf("a block of headers of more than %d bytes", maxBlock))
	}
	b := make([]byte, n)
	err = f.read(b)
	return string(b), err
}

func (f *inflater) read(b []byte) error {
	if f.left -= len(b); f.left < 0 {
		return protocolError(fmt.Sprintf("a block of headers of more than %d bytes", maxBlock))
	}
	if _, err := io.ReadFull(f.z, b); err != nil {
		return protocolError("headers: " + err.Error())
	}
	return nil
}

// appendHeaders appends a block, as zlib stores bytes that it does not compress: headers
// are a hundred bytes, for which a compressor would hold 800 kB as long as the connection
// lives. The first block of a connection has zlib's header before it.
func appendHeaders(b []byte, h http.Header, first bool) []byte {
	plain := binary.BigEndian.AppendUint32(nil, uint32(len(h)))
	for name, values := range h {
		for _, s := range []string{strings.ToLower(name), strings.Join(values, "\x00")} {
			plain = binary.BigEndian.AppendUint32(plain, uint32(len(s)))
			plain = append(plain, s...)
		}
	}
	if first {
		b = append(b, 0x78, 0x20) // deflate, a window of 32 kB; with a dictionary
		b = binary.BigEndian.AppendUint32(b, dictionaryID())
	}
	for len(plain) > 0 {
		n := min(len(plain), 0xffff)
		b = appendStored(b, plain[:n])
		plain = plain[n:]
	}
	// An empty one, by which zlib's readers know that what they have is to be given away.
	return appendStored(b, nil)
}

func appendStored(b, stored []byte) []byte {
	b = append(b, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(stored)))
	b = binary.LittleEndian.AppendUint16(b, ^uint16(len(stored)))
	return append(b, stored...)
}
