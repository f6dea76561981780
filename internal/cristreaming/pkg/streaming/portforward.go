package streaming

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// maxPorts is how many ports a client that speaks WebSocket may have forwarded: a port has two
// streams, whose number is a byte.
const maxPorts = 100

// A pair is the streams of one forwarded connection.
type pair struct {
	id          string
	data, error httpstream.Stream
	more        httpstream.Stream // one too many
	// replied are closed once the client knows that its streams are taken: what ends them
	// before would not be known to the library.
	replied []<-chan struct{}
	// until is when it is given up, unless it has both.
	until time.Time
}

func (s *server) servePortForward(w http.ResponseWriter, r *http.Request, request *cri.PortForwardRequest) {
	back, err := s.forwarders.take(forwarders, "sandbox "+request.PodSandboxId)
	if err != nil {
		refuse(w, err)
		return
	}
	defer back()
	if wsstream.IsWebSocketRequest(r) {
		s.forwardWebSocket(w, r, request)
		return
	}
	c, h := s.newClient(w, r)
	streams := make(chan created)
	_, ok := c.upgrade(h, r, s.config.SupportedPortForwardProtocols, func(stream httpstream.Stream, replied <-chan struct{}) error {
		if err := checkHeaders(stream.Headers()); err != nil {
			return err
		}
		select {
		case streams <- created{stream, replied}:
			return nil
		case <-c.Done():
			return errEnded
		}
	})
	if !ok {
		return
	}
	defer c.close()
	c.pairUp(request.PodSandboxId, streams)
}

// checkHeaders checks those of a stream for a forwarded connection.
func checkHeaders(h http.Header) error {
	port, kind := h.Get("port"), h.Get("streamType")
	if port == "" {
		return errors.New(`"port" header is required`)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil:
		return fmt.Errorf("unable to parse %q as a port: %v", port, err)
	case n == 0:
		return fmt.Errorf("port %q must be > 0", port)
	case kind == "":
		return errors.New(`"streamType" header is required`)
	case kind != "error" && kind != "data":
		return fmt.Errorf("invalid stream type %q", kind)
	}
	return nil
}

// pairUp forwards a connection for each pair of streams, until the client leaves.
func (c *client) pairUp(sandbox string, streams <-chan created) {
	wait := c.server.config.StreamCreationTimeout
	pairs := map[string]*pair{}
	tick := time.NewTicker(max(wait/10, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-c.Done():
			return
		case now := <-tick.C:
			for id, p := range pairs {
				if now.After(p.until) {
					delete(pairs, id)
					c.fail(p, fmt.Errorf("(request=%s) timed out waiting for streams", id))
				}
			}
		case stream := <-streams:
			id := requestID(stream.Stream)
			p := pairs[id]
			if p == nil {
				if len(pairs) >= pairsWaiting {
					c.fail(&pair{error: stream, replied: []<-chan struct{}{stream.replied}}, fmt.Errorf("error processing stream for request %s: this client has %d connections that lack a stream", id, len(pairs)))
					continue
				}
				p = &pair{id: id, until: time.Now().Add(wait)}
				pairs[id] = p
			}
			which, kind := &p.data, "data"
			if stream.Headers().Get("streamType") == "error" {
				which, kind = &p.error, "error"
			}
			if *which != nil { // which of them belongs to the other is not known
				delete(pairs, id)
				p.replied = append(p.replied, stream.replied)
				if p.more = stream.Stream; p.error == nil {
					p.error, p.more = p.more, nil
				}
				c.fail(p, fmt.Errorf("error processing stream for request %s: %s stream already assigned", id, kind))
				continue
			}
			p.replied = append(p.replied, stream.replied)
			if *which = stream.Stream; p.data != nil && p.error != nil {
				delete(pairs, id)
				c.server.config.Go("stream client: forward", func() {
					err := errors.New("panic")
					defer func() { c.finish(p, err) }()
					err = c.forwardPair(sandbox, p)
				})
			}
		}
	}
}

// requestID is what the streams of a pair have in common. Old clients do not send it: their
// streams have numbers, that of the data after that of the error.
func requestID(s httpstream.Stream) string {
	if id := s.Headers().Get("requestID"); id != "" {
		return id
	}
	if s.Headers().Get("streamType") == "data" {
		return strconv.FormatUint(uint64(s.Identifier())-2, 10)
	}
	return strconv.FormatUint(uint64(s.Identifier()), 10)
}

func (c *client) forwardPair(sandbox string, p *pair) error {
	port, err := strconv.ParseUint(p.data.Headers().Get("port"), 10, 16)
	if err != nil {
		return err
	}
	return c.server.forward(c, sandbox, int32(port), p.data)
}

// fail ends a pair, which waits for nobody.
func (c *client) fail(p *pair, err error) {
	c.server.config.Go("stream client: refuse", func() { c.finish(p, err) })
}

// finish ends a pair. The client is given the error; without one what it has not read yet
// comes to it.
func (c *client) finish(p *pair, err error) {
	for _, replied := range p.replied {
		select {
		case <-replied:
		case <-c.Done():
		}
	}
	if err != nil && p.error != nil {
		_, _ = fmt.Fprint(p.error, err)
	}
	for _, s := range []httpstream.Stream{p.data, p.error, p.more} {
		if s == nil {
			continue
		}
		if err == nil {
			_ = s.Close()
		}
		c.drop(s) // tells a client that was sent all nothing more
	}
}

// drop forgets a stream, so that a connection that stays has none of those of before.
func (c *client) drop(s httpstream.Stream) {
	_ = s.Reset()
	c.spdy.RemoveStreams(s)
	c.remove(s.Identifier())
}

// forward forwards one connection into a sandbox. Its error is the client's.
func (s *server) forward(ctx context.Context, sandbox string, port int32, stream io.ReadWriteCloser) error {
	back, err := s.forwarded.take(forwarded, "sandbox "+sandbox)
	if err == nil {
		defer back()
		if s.config.Dial == nil {
			err = s.runtime.PortForward(ctx, sandbox, port, stream)
		} else {
			err = s.join(ctx, sandbox, port, stream)
		}
	}
	if err != nil {
		return fmt.Errorf("error forwarding port %d to pod %s, uid : %w", port, sandbox, err)
	}
	return nil
}

// forwardWebSocket forwards a connection to each of the ports that the runtime was asked for,
// and no other. All streams begin with their port.
func (s *server) forwardWebSocket(w http.ResponseWriter, r *http.Request, request *cri.PortForwardRequest) {
	if len(request.Port) > maxPorts {
		http.Error(w, fmt.Sprintf("%d ports, at most %d can be forwarded", len(request.Port), maxPorts), http.StatusBadRequest)
		return
	}
	var channels []wsstream.ChannelType
	for range request.Port {
		channels = append(channels, wsstream.ReadWriteChannel, wsstream.WriteChannel)
	}
	c, _, streams, ok := s.webSocket(w, r, channels, "", "v4.channel.k8s.io")
	if !ok {
		return
	}
	defer c.close()
	ended := make(chan struct{}, len(request.Port))
	for i, port := range request.Port {
		data, errs := streams[2*i], streams[2*i+1]
		first := binary.LittleEndian.AppendUint16(nil, uint16(port))
		_, _ = data.Write(first)
		_, _ = errs.Write(first)
		s.config.Go("stream client: forward", func() {
			defer func() { ended <- struct{}{} }()
			defer errs.Close()
			defer data.Close()
			if err := s.forward(c, request.PodSandboxId, port, data); err != nil {
				_, _ = fmt.Fprint(errs, err)
			}
		})
	}
	for range request.Port {
		<-ended
	}
}

// grace is how long one direction of a connection goes on after the other has ended.
const grace = time.Second

// join dials and copies in both directions, until one has ended and the other has had a
// second more, or ctx ends.
func (s *server) join(ctx context.Context, sandbox string, port int32, stream io.ReadWriteCloser) error {
	conn, err := s.config.Dial(ctx, sandbox, port)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer stream.Close()
	ends := make(chan error, 2)
	direction := func(do func() error) {
		s.config.Go("stream client: copy", func() {
			err := errors.New("panic")
			defer func() { ends <- err }()
			err = do()
		})
	}
	direction(func() error { return fromConn(stream, conn) })
	direction(func() error { return fromStream(conn, stream) })
	select {
	case err = <-ends:
	case <-ctx.Done():
		return ctx.Err()
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case second := <-ends:
		if err == nil {
			err = second
		}
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	return err
}
