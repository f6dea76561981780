package streaming

import (
	"io"
	"net/http"
	"strings"

	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// webSocket has the client speak WebSocket, by one of protocols, in binary or in base64.
// Where it does not, it has been answered.
func (s *server) webSocket(w http.ResponseWriter, r *http.Request, channels []wsstream.ChannelType, protocols ...string) (*client, string, []io.ReadWriteCloser, bool) {
	of := map[string]wsstream.ChannelProtocolConfig{}
	for _, p := range protocols {
		of[p] = wsstream.ChannelProtocolConfig{Binary: true, Channels: channels}
		if base, ok := strings.CutSuffix(p, "channel.k8s.io"); ok {
			of[base+"base64.channel.k8s.io"] = wsstream.ChannelProtocolConfig{Channels: channels}
		}
	}
	c, h := s.newClient(w, r)
	h.frames = s.config.Frames
	ws := wsstream.NewConn(of)
	ws.SetIdleTimeout(s.config.StreamIdleTimeout)
	protocol, streams, err := ws.Open(h, r)
	if err != nil {
		if c.conn != nil {
			_ = c.conn.Close()
		}
		return nil, "", nil, false
	}
	c.leave = func() { _ = ws.Close() } // its readers get EOF
	s.config.Go("stream client: watch", func() { c.watch(nil) })
	return c, protocol, streams, true
}
