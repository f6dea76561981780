package http3

import (
	"errors"
	"fmt"
	"io"

	"github.com/quic-go/quic-go/quicvarint"
)

// Types of frames.
const (
	frameData        = 0x0
	frameHeaders     = 0x1
	frameCancelPush  = 0x3
	frameSettings    = 0x4
	framePushPromise = 0x5
	frameGoAway      = 0x7
	frameMaxPushID   = 0xd
)

// settingFieldSize is the setting of how many bytes of fields are read.
const settingFieldSize = 0x6

// appendSettings appends the frame that a connection begins with. No table of fields is
// used, and nothing is pushed: those are what holds unless it is said.
func appendSettings(b []byte) []byte {
	content := quicvarint.Append(quicvarint.Append(nil, settingFieldSize), maxHead)
	return append(appendHead(b, frameSettings, len(content)), content...)
}

// appendHead appends the head of a frame.
func appendHead(b []byte, kind uint64, size int) []byte {
	return quicvarint.Append(quicvarint.Append(b, kind), uint64(size))
}

// frames reads those of one stream.
type frames struct {
	r       io.Reader
	skipped int // bytes of frames that mean nothing, on a stream of a request
	buf     [1]byte
}

// ReadByte is of io.ByteReader.
func (f *frames) ReadByte() (byte, error) {
	for {
		n, err := f.r.Read(f.buf[:])
		if n == 1 {
			return f.buf[0], nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// number reads one of one to eight bytes. Its error is io.EOF only before the first byte.
func (f *frames) number() (uint64, error) {
	first, err := f.ReadByte()
	if err != nil {
		return 0, err
	}
	n := uint64(first & 0x3f)
	for range 1<<(first>>6) - 1 {
		b, err := f.ReadByte()
		if err != nil {
			return 0, broken(err)
		}
		n = n<<8 | uint64(b)
	}
	return n, nil
}

// broken is an error within something that was begun.
func broken(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// A connectionError ends the connection.
type connectionError code

func (e connectionError) Error() string { return fmt.Sprintf("HTTP/3: error %#x", uint64(e)) }

var errSkipped = errors.New("too many frames that mean nothing")

// ofRequest is the next frame of a request's stream that means something: its content is
// still to be read. At the end of the stream the error is io.EOF.
func (f *frames) ofRequest() (kind, size uint64, err error) {
	for {
		if kind, err = f.number(); err != nil {
			return 0, 0, err
		}
		if size, err = f.number(); err != nil {
			return 0, 0, broken(err)
		}
		switch kind {
		case frameData, frameHeaders:
			return kind, size, nil
		case frameCancelPush, frameSettings, framePushPromise, frameGoAway, frameMaxPushID,
			0x2, 0x6, 0x8, 0x9: // these were HTTP/2's
			return 0, 0, connectionError(frameUnexpected)
		}
		const head = 2 // bytes, of the shortest frame
		if left := uint64(maxSkipped - f.skipped); left < head || size > left-head {
			return 0, 0, errSkipped
		}
		f.skipped += int(size) + head
		if _, err = io.CopyN(io.Discard, f.r, int64(size)); err != nil {
			return 0, 0, broken(err)
		}
	}
}

// control reads the client's control stream, and returns why that ended.
func (f *frames) control() code {
	for first := true; ; first = false {
		kind, err := f.number()
		if err != nil {
			return closedCriticalStream
		}
		size, err := f.number()
		if err != nil {
			return closedCriticalStream
		}
		switch kind {
		case frameSettings:
			if !first {
				return frameUnexpected
			}
			if why := f.settings(size); why != noError {
				return why
			}
			continue
		case frameData, frameHeaders, framePushPromise, 0x2, 0x6, 0x8, 0x9:
			return frameUnexpected
		case frameCancelPush, frameGoAway, frameMaxPushID:
			if size > 8 {
				return frameError
			}
		}
		if first {
			return missingSettings
		}
		if size > maxHead {
			return excessiveLoad
		}
		if _, err := io.CopyN(io.Discard, f.r, int64(size)); err != nil {
			return closedCriticalStream
		}
	}
}

// settings reads those of the client, of which none matters here: answers use no table.
func (f *frames) settings(size uint64) code {
	const most = 4 << 10
	if size > most {
		return excessiveLoad
	}
	content := make([]byte, size)
	if _, err := io.ReadFull(f.r, content); err != nil {
		return closedCriticalStream
	}
	seen := map[uint64]bool{}
	for len(content) > 0 {
		id, n, err := quicvarint.Parse(content)
		if err != nil {
			return frameError
		}
		_, m, err := quicvarint.Parse(content[n:])
		if err != nil {
			return frameError
		}
		content = content[n+m:]
		if seen[id] || id == 0 || id >= 2 && id <= 5 { // those were HTTP/2's
			return settingsError
		}
		seen[id] = true
	}
	return noError
}
