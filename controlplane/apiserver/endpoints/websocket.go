package endpoints

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/net/websocket"

	"knarr/internal/run"
)

// farewell is how long a client may take to hear that its watch has ended.
const farewell = time.Second

// webSocket turns the connection into one and sends each frame as a message:
// text for JSON, binary for protobuf.
func (s *stream) webSocket() error {
	ready := make(chan *websocket.Conn, 1)
	finish := make(chan struct{})
	returned := make(chan struct{})
	gone := make(chan struct{})
	server := websocket.Handler(func(ws *websocket.Conn) { // which refuses who names no origin
		ready <- ws
		// A client that reads nothing must not hold up the end.
		defer context.AfterFunc(s.c.ctx, func() {
			_ = ws.SetReadDeadline(time.Now())
			_ = ws.SetWriteDeadline(time.Now().Add(farewell))
		})()
		// The client says nothing; a read only notices that it has left.
		run.Go("WebSocket: read", func() {
			defer close(gone)
			var none [64]byte
			for {
				if _, err := ws.Read(none[:]); err != nil {
					return
				}
			}
		})
		<-finish
		_ = ws.SetWriteDeadline(time.Now().Add(farewell))
		ws.Close()
		<-gone
	})
	run.Go("WebSocket: serve", func() {
		defer close(returned)
		defer func() { // it panics over a connection that cannot be had
			if p := recover(); p != nil {
				slog.WarnContext(s.c.ctx, "begin a WebSocket", "panic", p)
			}
		}()
		server.ServeHTTP(s.c.w, s.c.r)
	})
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
