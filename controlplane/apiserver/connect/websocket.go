package connect

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"slices"

	"golang.org/x/net/websocket"

	"knarr/internal/run"
)

// encodings are the protocols in which a client can have a stream, and what
// each makes of a piece of it. Without a protocol it is binary.
var encodings = map[string]func([]byte) any{
	"":                     func(b []byte) any { return b },
	"binary.k8s.io":        func(b []byte) any { return b },
	"base64.binary.k8s.io": func(b []byte) any { return base64.StdEncoding.EncodeToString(b) },
}

// frames sends what the backend answers as the messages of a WebSocket, an
// empty one first.
func (l *relay) frames(c *connection) error {
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
		run.Go("WebSocket: read", func() { // the client says nothing; a read only notices that it has left
			defer close(gone)
			_, _ = io.Copy(io.Discard, ws)
			resp.Body.Close()
		})
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
