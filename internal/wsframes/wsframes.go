// Package wsframes splits long frames of WebSocket clients of exec, attach and port-forward.
// The library that reads them takes up to 32 MiB of one into memory, and holds it until
// somebody reads it: a client of a process that does not read its input holds as much of this
// process for each session. It reads what a client sends, and writes nothing.
package wsframes

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
)

// maxFrame is how long the payload of a frame may be to pass as it is.
const maxFrame = 32 << 10

// Opcodes and bits of RFC 6455, section 5.2.
const (
	control = 8
	masked  = 0x80
	length2 = 126
	length8 = 127
)

// A splitter gives what a client sends with frames of maxFrame bytes at most. The first byte of
// a payload is the number of its stream, and so that of all its parts.
type splitter struct {
	from io.Reader

	out  []byte // to be given next
	pass uint64 // of a frame that passes as it is
	err  error  // to be given when out is

	// Of the frame that is being split.
	left   uint64 // unread
	first  byte   // of its header
	stream []byte // the first byte of its payload, once it is read
	mask   [4]byte
	at     int    // in the mask
	kept   int    // bytes at the beginning of buffer that belong to the next part
	buffer []byte // unmasked
	part   []byte // what out is a part of
}

// Split gives what a client sends by frames, after the handshake, with long frames split.
func Split(from io.Reader) io.Reader { return &splitter{from: from} }

func (s *splitter) Read(p []byte) (int, error) {
	for len(p) > 0 {
		switch {
		case len(s.out) > 0:
			n := copy(p, s.out)
			s.out = s.out[n:]
			return n, nil
		case s.err != nil:
			return 0, s.err
		case s.pass > 0:
			n, err := s.from.Read(p[:min(uint64(len(p)), s.pass)])
			s.pass -= uint64(n)
			return n, err
		case s.left > 0:
			s.split()
		default:
			s.header()
		}
	}
	return 0, nil
}

// header reads the header of a frame.
func (s *splitter) header() {
	var b [14]byte
	n := 2
	if !s.read(b[:0], b[:n]) {
		return
	}
	size := uint64(b[1] &^ masked)
	more := map[uint64]int{length2: 2, length8: 8}[size]
	if b[1]&masked != 0 {
		more += 4
	}
	if !s.read(b[:n], b[n:n+more]) {
		return
	}
	switch size {
	case length2:
		size = uint64(binary.BigEndian.Uint16(b[2:]))
	case length8:
		size = binary.BigEndian.Uint64(b[2:])
	}
	n += more
	if size <= maxFrame || b[1]&masked == 0 || b[0]&0xf >= control { // the library says what is wrong
		s.out, s.pass = b[:n], size
		return
	}
	s.left, s.first, s.at, s.kept, s.stream = size, b[0], 0, 0, nil
	copy(s.mask[:], b[n-4:n])
	if s.buffer == nil {
		s.buffer = make([]byte, maxFrame-1)
		s.part = make([]byte, 0, maxFrame+9)
	}
}

// read fills into, or has what was read before, and of it, given, then the error.
func (s *splitter) read(before, into []byte) bool {
	n, err := io.ReadFull(s.from, into)
	if err == nil {
		return true
	}
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	s.out, s.err = append(before[:len(before):len(before)], into[:n]...), err
	return false
}

// split reads some of a long frame, and makes a frame of it.
func (s *splitter) split() {
	n, err := s.from.Read(s.buffer[s.kept:min(uint64(len(s.buffer)), uint64(s.kept)+s.left)])
	s.left -= uint64(n)
	for i := range n {
		s.buffer[s.kept+i] ^= s.mask[s.at]
		s.at = (s.at + 1) & 3
	}
	data := s.buffer[:s.kept+n]
	s.err = err
	if s.stream == nil && len(data) > 0 {
		s.stream, data = []byte{data[0]}, data[1:]
	}
	give := len(data)
	if s.left > 0 && err == nil {
		give &^= 3 // base64, if it is, is decoded part by part
	}
	if give > 0 {
		s.part = append(s.part[:0], s.first, masked|length2)
		s.part = binary.BigEndian.AppendUint16(s.part, uint16(give+1))
		s.part = append(s.part, 0, 0, 0, 0) // a mask that changes nothing
		s.part = append(s.part, s.stream...)
		s.part = append(s.part, data[:give]...)
		s.out = s.part
	}
	s.kept = copy(s.buffer, data[give:])
}

// Of gives what the client of a connection that was just taken over sends by frames, with long
// ones split, and has the reader that came with the connection read that.
func Of(c net.Conn, buffers *bufio.ReadWriter) io.Reader {
	read, _ := buffers.Reader.Peek(buffers.Reader.Buffered())
	frames := Split(io.MultiReader(bytes.NewReader(bytes.Clone(read)), c))
	buffers.Reader.Reset(frames)
	return frames
}
