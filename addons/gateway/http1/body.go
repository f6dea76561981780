package http1

import (
	"errors"
	"io"
	"net/http"
	"strings"
)

var errChunk = errors.New("malformed chunk")

// How a body ends.
const (
	bodyNone = iota
	bodyLength
	bodyChunked
	bodyUntilClose
)

// maxExtensions bounds what chunks of one body may bring besides data.
const maxExtensions = 16 << 10

// A body reads a message's body off a connection.
type body struct {
	r          *reader
	kind       int
	left       int64 // of the body, or of the chunk
	inChunk    bool  // CR LF follows the data
	extensions int
	trailer    *fieldSet // of a chunked body, once it ended
	err        error     // io.EOF after the end
}

func (b *body) start(r *reader, kind int, length int64) {
	*b = body{r: r, kind: kind}
	if kind == bodyLength {
		b.left = length
	}
	if kind == bodyNone || kind == bodyLength && length == 0 {
		b.err = io.EOF
	}
}

// ended reports whether the whole body was read.
func (b *body) ended() bool { return b.err == io.EOF }

func (b *body) read(into []byte) (n int, err error) {
	if b.err != nil {
		return 0, b.err
	}
	if len(into) == 0 {
		return 0, nil
	}
	switch b.kind {
	case bodyUntilClose:
		n, err = b.data(into)
	case bodyChunked:
		if b.left == 0 {
			if err = b.nextChunk(); err != nil {
				break
			}
		}
		n, err = b.limited(into)
	default:
		if n, err = b.limited(into); err == nil && b.left == 0 {
			err = io.EOF
		}
	}
	if err != nil {
		b.err = err
	}
	if n > 0 && err == io.EOF {
		return n, nil // the end is the next read's
	}
	return n, err
}

// limited reads what is left, whose end is no surprise.
func (b *body) limited(into []byte) (int, error) {
	n, err := b.data(into[:min(int64(len(into)), b.left)])
	b.left -= int64(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// data reads from the buffer, or past it if it is empty.
func (b *body) data(into []byte) (int, error) {
	if b.r.from < b.r.to {
		n := copy(into, b.r.unread())
		b.r.from += n
		return n, nil
	}
	if len(into) >= bufferSize {
		return b.r.read(into)
	}
	if err := b.r.fill(); err != nil {
		return 0, err
	}
	n := copy(into, b.r.unread())
	b.r.from += n
	return n, nil
}

// line takes a line of at most so many bytes, without its end.
func (b *body) line(most int) (string, error) {
	for {
		unread := b.r.unread()
		i := indexByte(unread, '\n')
		switch {
		case i == 0 || i > 0 && unread[i-1] != '\r':
			return "", errChunk
		case i > most || i < 0 && len(unread) > most:
			return "", errChunk
		case i > 0:
			line := string(unread[:i-1])
			b.r.from += i + 1
			return line, nil
		}
		if err := b.r.fill(); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
	}
}

// nextChunk reads a chunk's size. io.EOF follows the last one and its trailer.
func (b *body) nextChunk() error {
	if b.inChunk {
		if end, err := b.line(2); err != nil || end != "" {
			return errors.Join(errChunk, err)
		}
	}
	b.inChunk = true
	line, err := b.line(1 << 10)
	if err != nil {
		return err
	}
	size, digits := int64(0), 0
	for digits < len(line) {
		d := hexDigit(line[digits])
		if d < 0 {
			break
		}
		if digits++; digits > 15 {
			return errChunk
		}
		size = size<<4 | int64(d)
	}
	rest := line[digits:]
	if digits == 0 || rest != "" && rest[0] != ';' {
		return errChunk
	}
	for i := 0; i < len(rest); i++ {
		if !fieldByte[rest[i]] {
			return errChunk
		}
	}
	if b.extensions += len(rest); b.extensions > maxExtensions {
		return errChunk
	}
	if b.left = size; size > 0 {
		return nil
	}
	return b.readTrailer()
}

func (b *body) readTrailer() error {
	lines, size := []string(nil), 0
	for {
		line, err := b.line(maxTrailer)
		if err != nil {
			return err
		}
		if line == "" {
			break
		}
		if size += len(line); size > maxTrailer {
			return errChunk
		}
		lines = append(lines, line, "\r\n")
	}
	if lines != nil {
		t := &fieldSet{}
		t.reset()
		if err := t.parse(strings.Join(lines, "")); err != nil {
			return err
		}
		for _, name := range notInTrailers {
			delete(t.header, name)
		}
		b.trailer = t
	}
	return io.EOF
}

// notInTrailers are fields that mean something only before the body: in a trailer they
// would say it too late, or to somebody else.
var notInTrailers = []string{"Content-Length", "Transfer-Encoding", "Host", "Connection", "Trailer", "Te", "Upgrade", "Content-Encoding",
	"Content-Type", "Content-Range", "Authorization", "Cookie", "Set-Cookie", "Expect", "Cache-Control"}

func (b *body) trailers() http.Header {
	if b.trailer == nil {
		return nil
	}
	return b.trailer.header
}

func hexDigit(b byte) int {
	switch {
	case '0' <= b && b <= '9':
		return int(b - '0')
	case 'a' <= b && b <= 'f':
		return int(b-'a') + 10
	case 'A' <= b && b <= 'F':
		return int(b-'A') + 10
	}
	return -1
}
