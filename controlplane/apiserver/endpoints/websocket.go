package endpoints

import (
	"bytes"
	"net/http"
	"strings"

	"golang.org/x/net/websocket"
)

func isWebSocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket") && hasToken(r.Header.Get("Connection"), "upgrade")
}

func hasToken(header, token string) bool {
	for part := range strings.SplitSeq(header, ",") {
		if strings.EqualFold(strings.TrimSpace(part), token) {
			return true
		}
	}
	return false
}

// webSocket turns the connection into one and sends each frame as a message:
// text for JSON, binary for protobuf.
func (s *stream) webSocket() error {
	ready := make(chan *websocket.Conn, 1)
	finish := make(chan struct{})
	returned := make(chan struct{})
	gone := make(chan struct{})
	server := websocket.Server{Handler: func(ws *websocket.Conn) {
		ready <- ws
		// The client says nothing; a read only notices that it has left.
		go func() {
			defer close(gone)
			var none [64]byte
			for {
				if _, err := ws.Read(none[:]); err != nil {
					return
				}
			}
		}()
		<-finish
		ws.Close()
		<-gone
	}}
	go func() {
		defer close(returned)
		server.ServeHTTP(s.c.w, s.c.r)
	}()
	select {
	case ws := <-ready:
		s.done = gone
		s.send = func(b []byte) error { return s.messages(ws, b) }
		s.end = func() { close(finish); <-returned }
		return nil
	case <-returned:
		// The handshake failed and has been answered.
		return http.ErrAbortHandler
	}
}

func (s *stream) messages(ws *websocket.Conn, b []byte) error {
	if s.c.out.format == formatProtobuf {
		for len(b) >= 4 {
			size := 4 + (int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3]))
			if err := websocket.Message.Send(ws, b[4:size]); err != nil {
				return err
			}
			b = b[size:]
		}
		return nil
	}
	for line := range bytes.SplitAfterSeq(b, newline) {
		if len(line) == 0 {
			continue
		}
		if err := websocket.Message.Send(ws, string(line)); err != nil {
			return err
		}
	}
	return nil
}
