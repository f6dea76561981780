package dataplane

import (
	"bytes"
	"io"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A framer speaks HTTP/2 frame by frame.
type framer struct {
	*http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
}

func newFramer(conn net.Conn, settings ...http2.Setting) *framer {
	f := &framer{Framer: http2.NewFramer(conn, conn)}
	f.encoder = hpack.NewEncoder(&f.block)
	_, _ = io.WriteString(conn, http2.ClientPreface)
	_ = f.WriteSettings(settings...)
	return f
}

// field is one field of a header block.
func (f *framer) field(name, value string) []byte {
	f.block.Reset()
	_ = f.encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: true})
	return f.block.Bytes()
}

// ask sends a GET; whole says that its head ends.
func (f *framer) ask(id uint32, path string, whole bool) error {
	f.block.Reset()
	for _, field := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "h"}, {":path", path}} {
		_ = f.encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.block.Bytes(), EndHeaders: whole, EndStream: true})
}

// askHTTP2 sends one request of any fields, with ten bytes of a body if it has a POST's, and returns the status, or
// that the stream or the connection was ended.
func (f *fixture) askHTTP2(fields [][2]string) (status string, ended bool) {
	conn := f.dial(80)
	framer := newFramer(conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	post := false
	for _, field := range fields {
		post = post || field[1] == "POST"
		_ = framer.encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: framer.block.Bytes(), EndHeaders: true, EndStream: !post})
	if post {
		_ = framer.WriteData(1, true, []byte("abc"))
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return "", true
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status"), false
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return "", true
		}
	}
}
