package dataplane

import (
	"bytes"
	"io"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// askHTTP2 sends one request of any fields, with ten bytes of a body if it has a POST's, and returns the status, or
// that the stream or the connection was ended.
func (f *fixture) askHTTP2(fields [][2]string) (status string, ended bool) {
	conn := f.dial(80)
	_, _ = io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = framer.WriteSettings()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	post := false
	for _, field := range fields {
		post = post || field[1] == "POST"
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: !post})
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
