package endpoints

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

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
		_ = ws.SetWriteDeadline(time.Now().Add(farewell))
		ws.Close()
		<-gone
	})
	go func() {
		defer close(returned)
		defer func() { // it panics over a connection that cannot be had
			if p := recover(); p != nil {
				slog.WarnContext(s.c.ctx, "begin a WebSocket", "panic", p)
			}
		}()
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

// encodings are the protocols in which a client can have a stream, and what
// each makes of a piece of it. Without a protocol it is binary.
var encodings = map[string]func([]byte) any{
	"":                     func(b []byte) any { return b },
	"binary.k8s.io":        func(b []byte) any { return b },
	"base64.binary.k8s.io": func(b []byte) any { return base64.StdEncoding.EncodeToString(b) },
}

// frames sends what the backend answers as the messages of a WebSocket, an
// empty one first.
func (l *relay) frames(c *call) error {
	req, err := http.NewRequestWithContext(c.ctx, http.MethodGet, l.target.String(), nil)
	if err != nil {
		return err
	}
	resp, err := l.transport.RoundTrip(req)
	if err != nil {
		return l.failure(err)
	}
	defer resp.Body.Close()
	if err := l.check(resp); err != nil {
		return err
	}
	websocket.Server{Handshake: chooseEncoding, Handler: func(ws *websocket.Conn) {
		encode := encodings[""]
		if p := ws.Config().Protocol; len(p) > 0 {
			encode = encodings[p[0]]
		}
		gone := make(chan struct{})
		go func() { // the client says nothing; a read only notices that it has left
			defer close(gone)
			_, _ = io.Copy(io.Discard, ws)
			resp.Body.Close()
		}()
		defer func() { ws.Close(); <-gone }()
		buf := make([]byte, 32<<10)
		for n := 0; ; {
			if err := websocket.Message.Send(ws, encode(buf[:n])); err != nil {
				return
			}
			if n, err = resp.Body.Read(buf); n == 0 && err != nil {
				return
			}
		}
	}}.ServeHTTP(c.w, c.r)
	return nil
}

// chooseEncoding picks the first protocol of the client's that there is.
func chooseEncoding(config *websocket.Config, _ *http.Request) error {
	if len(config.Protocol) == 0 {
		return nil
	}
	i := slices.IndexFunc(config.Protocol, func(p string) bool { return encodings[p] != nil })
	if i < 0 {
		return fmt.Errorf("no protocol of %q is known", config.Protocol)
	}
	config.Protocol = config.Protocol[i : i+1]
	return nil
}
