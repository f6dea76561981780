package spdystream

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// The types of control frames, and what they say, as SPDY/3.1 numbers them.
const (
	version = 3

	synStream   = 1
	synReply    = 2
	rstStream   = 3
	ping        = 6
	goAway      = 7
	moreHeaders = 8

	flagFin            = 1
	flagUnidirectional = 2

	statusProtocolError = 1
	statusRefused       = 3
	statusCancel        = 5

	goAwayOK            = 0
	goAwayProtocolError = 1

	maxID = 1<<31 - 1
)

const (
	// maxControl is how long a control frame may be.
	maxControl = 64 << 10
	// maxPiece is how much of a data frame is read or written at once.
	maxPiece = 32 << 10
	// pieceSize is what there is for a piece and what is written before it.
	pieceSize = maxPiece + 64
)

// pieces are the buffers of data that is on its way just now.
var pieces = sync.Pool{New: func() any { return new(make([]byte, 0, pieceSize)) }}

// A reader reads the frames of one connection.
type reader struct {
	*bufio.Reader
	inflater inflater
}

// A frame is a control frame, or what comes before the data of a data frame.
type frame struct {
	control bool
	kind    uint16
	flags   uint8
	length  int
	id      uint32 // of the stream; of a ping its own
	status  uint32
	headers http.Header
	cost    int // what the headers take
}

// frame reads the next frame, without the data if it has data.
func (r *reader) frame() (f frame, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	first, second := binary.BigEndian.Uint32(head[:]), binary.BigEndian.Uint32(head[4:])
	f.flags, f.length = uint8(second>>24), int(second&0xffffff)
	if f.control = first>>31 == 1; !f.control {
		f.id = first
		if f.id == 0 {
			return f, protocolError("data of stream 0")
		}
		return f, nil
	}
	if v := first >> 16 & 0x7fff; v != version {
		return f, protocolError(fmt.Sprintf("a frame of version %d", v))
	}
	if f.length > maxControl {
		return f, protocolError(fmt.Sprintf("a control frame of %d bytes; %d are the most", f.length, maxControl))
	}
	f.kind = uint16(first)
	return f, r.control(&f)
}

// fixed is how long what comes before the headers is, and whether headers follow.
var fixed = map[uint16]struct {
	length  int
	headers bool
}{
	synStream:   {10, true},
	synReply:    {4, true},
	moreHeaders: {4, true},
	rstStream:   {8, false},
	goAway:      {8, false},
	ping:        {4, false},
}

// control reads the rest of a control frame. Settings, windows and credentials, and
// frames that there are not, are skipped, whatever they say.
func (r *reader) control(f *frame) error {
	want, known := fixed[f.kind]
	if !known {
		_, err := r.Discard(f.length)
		return err
	}
	if f.length < want.length || f.length > want.length && !want.headers {
		return protocolError(fmt.Sprintf("a frame of type %d with %d bytes", f.kind, f.length))
	}
	b := make([]byte, f.length)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	f.id = binary.BigEndian.Uint32(b)
	if f.kind != ping {
		f.id &= maxID
	}
	if f.id == 0 && f.kind != goAway {
		return protocolError(fmt.Sprintf("a frame of type %d for stream 0", f.kind))
	}
	switch f.kind {
	case rstStream, goAway:
		f.status = binary.BigEndian.Uint32(b[4:])
	}
	if !want.headers {
		return nil
	}
	var err error
	f.headers, f.cost, err = r.inflater.headers(b[want.length:])
	return err
}

// appendControl appends a control frame whose payload is words, then rest.
func appendControl(b []byte, kind uint16, flags uint8, rest []byte, words ...uint32) []byte {
	b = binary.BigEndian.AppendUint32(b, 1<<31|version<<16|uint32(kind))
	b = binary.BigEndian.AppendUint32(b, uint32(flags)<<24|uint32(4*len(words)+len(rest)))
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return append(b, rest...)
}

func appendData(b []byte, id uint32, flags uint8, data []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, id)
	b = binary.BigEndian.AppendUint32(b, uint32(flags)<<24|uint32(len(data)))
	return append(b, data...)
}

func finFlag(fin bool) uint8 {
	if fin {
		return flagFin
	}
	return 0
}
