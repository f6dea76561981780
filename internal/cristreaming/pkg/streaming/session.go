package streaming

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	"k8s.io/utils/exec"
)

// maxSize bounds how long the JSON of a terminal's size is.
const maxSize = 1024

// maxStreams is how many streams a client of exec or attach may create, though five are used.
const maxStreams = 16

// A session is what a client of exec or attach has created of streams.
type session struct {
	*client
	back           func() // gives its place to others
	stdin          io.Reader
	stdout, stderr io.WriteCloser
	status         io.Writer
	resize         io.Reader
	// object says that the client takes the end of the session as an object in JSON, success
	// too; before version 4 it is the text of an error.
	object bool
}

// created is a stream, and what is closed once its client knows that it is taken.
type created struct {
	httpstream.Stream
	replied <-chan struct{}
}

// options are the streams that a client asked the runtime for.
type options struct{ stdin, stdout, stderr, tty bool }

func (s *server) serveExec(w http.ResponseWriter, r *http.Request, request *cri.ExecRequest) {
	s.serveSession(w, r, request.ContainerId, options{request.Stdin, request.Stdout, request.Stderr, request.Tty}, "error executing command in container: %w",
		func(c *session, resize <-chan remotecommand.TerminalSize) error {
			ctx, stop := s.orphaned(c, request.ContainerId)
			defer stop()
			return s.runtime.Exec(ctx, request.ContainerId, request.Cmd, c.stdin, c.stdout, c.stderr, request.Tty, resize)
		})
}

func (s *server) serveAttach(w http.ResponseWriter, r *http.Request, request *cri.AttachRequest) {
	s.serveSession(w, r, request.ContainerId, options{request.Stdin, request.Stdout, request.Stderr, request.Tty}, "error attaching to container: %w",
		func(c *session, resize <-chan remotecommand.TerminalSize) error {
			return s.runtime.Attach(c, request.ContainerId, c.stdin, c.stdout, c.stderr, request.Tty, resize)
		})
}

// orphaned gives a command its context. The command goes on without its client, but not as a
// session: a shell whose client was killed waits for input that never comes, and users with
// poor connections would soon have no place left. It is counted as an orphan instead; one
// more than there may be is killed, by the end of its context. stop is called when it ends.
func (s *server) orphaned(c *session, container string) (ctx context.Context, stop func()) {
	ctx, kill := context.WithCancel(context.WithoutCancel(c))
	s.config.Go("stream client: orphan", func() {
		select {
		case <-ctx.Done():
			return
		case <-c.Done():
		}
		back, err := s.orphans.take(orphans, "container "+container)
		if err != nil {
			kill()
			return
		}
		defer back()
		c.back()
		<-ctx.Done()
	})
	return ctx, kill
}

// serveSession has a client create its streams and gives them to do.
func (s *server) serveSession(w http.ResponseWriter, r *http.Request, container string, o options, failed string,
	do func(*session, <-chan remotecommand.TerminalSize) error) {
	back, err := s.sessions.take(sessions, "container "+container)
	if err != nil {
		refuse(w, err)
		return
	}
	defer back()
	open := s.spdySession
	if wsstream.IsWebSocketRequest(r) {
		open = s.webSocketSession
	}
	c, ok := open(w, r, o)
	if !ok {
		return
	}
	c.back = back
	defer c.close()
	var resize chan remotecommand.TerminalSize
	if c.resize != nil {
		resize = make(chan remotecommand.TerminalSize)
		ctx, stop := context.WithCancel(c)
		defer stop()
		s.config.Go("stream client: resize", func() { c.resizes(ctx, resize) })
	}
	err = do(c, resize)
	c.conn.last()
	c.report(err, failed)
}

// refuse answers a client that is one too many.
func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Retry-After", "60")
	http.Error(w, err.Error(), http.StatusTooManyRequests)
}

// spdySession waits for the streams of a client that speaks SPDY.
func (s *server) spdySession(w http.ResponseWriter, r *http.Request, o options) (*session, bool) {
	c, h := s.newClient(w, r)
	streams, enough := make(chan created), make(chan struct{})
	defer close(enough)
	var count atomic.Int64
	protocol, ok := c.upgrade(h, r, s.config.SupportedRemoteCommandProtocols, func(stream httpstream.Stream, replied <-chan struct{}) error {
		if count.Add(1) > maxStreams {
			return errors.New("too many streams")
		}
		select {
		case streams <- created{stream, replied}:
			return nil
		case <-enough:
			return errEnded
		case <-c.Done():
			return errEnded
		}
	})
	if !ok {
		return nil, false
	}
	made := &session{client: c, object: protocol == "v4.channel.k8s.io"}
	sizes := made.object || protocol == "v3.channel.k8s.io"
	lack := map[string]bool{"error": true}
	for kind, asked := range map[string]bool{"stdin": o.stdin, "stdout": o.stdout, "stderr": o.stderr, "resize": o.tty && sizes} {
		if asked {
			lack[kind] = true
		}
	}
	expired, stop := context.WithTimeout(c, s.config.StreamCreationTimeout)
	defer stop()
	var replies []<-chan struct{}
	for len(lack) > 0 {
		select {
		case stream := <-streams:
			kind := stream.Headers().Get("streamType")
			if !lack[kind] {
				// Nobody reads it, and what is sent on it must not hold up the others.
				s.config.Go("stream client: discard", func() { discard(stream) })
				continue
			}
			delete(lack, kind)
			replies = append(replies, stream.replied)
			switch kind {
			case "error":
				made.status = stream
			case "stdin":
				made.stdin = stream
			case "stdout":
				made.stdout = stream
			case "stderr":
				made.stderr = stream
			case "resize":
				made.resize = stream
			}
		case <-expired.Done():
			if made.status != nil && c.Err() == nil {
				made.report(errors.New("timed out waiting for client to create streams"), "%w")
			}
			c.close()
			return nil, false
		}
	}
	for _, replied := range replies { // else the end could come before the answer
		select {
		case <-replied:
		case <-expired.Done(): // who reads nothing gets nothing
			c.close()
			return nil, false
		}
	}
	return made, true
}

// resizes reads the sizes that a client's terminal gets, until ctx or the stream ends.
func (c *session) resizes(ctx context.Context, to chan<- remotecommand.TerminalSize) {
	defer close(to)
	in := &io.LimitedReader{R: c.resize}
	for decoder := json.NewDecoder(in); ; {
		in.N = maxSize
		var size remotecommand.TerminalSize
		if err := decoder.Decode(&size); err != nil {
			discard(c.resize)
			return
		}
		select {
		case to <- size:
		case <-ctx.Done():
			return
		}
	}
}

// report writes how the session ended, in the terms of metav1.Status.
func (c *session) report(err error, failed string) {
	type cause struct {
		Type    string `json:"reason"`
		Message string `json:"message"`
	}
	type details struct {
		Causes []cause `json:"causes"`
	}
	var end struct {
		Status  string   `json:"status"`
		Message string   `json:"message,omitempty"`
		Reason  string   `json:"reason,omitempty"`
		Details *details `json:"details,omitempty"`
		Code    int      `json:"code,omitempty"`
	}
	var exit exec.ExitError
	switch {
	case err == nil:
		end.Status = "Success"
	case errors.As(err, &exit) && exit.Exited():
		end.Status, end.Reason = "Failure", "NonZeroExitCode"
		end.Message = fmt.Sprintf("command terminated with non-zero exit code: %v", exit)
		end.Details = &details{[]cause{{"ExitCode", strconv.Itoa(exit.ExitStatus())}}}
	default:
		end.Status, end.Reason, end.Code = "Failure", "InternalError", http.StatusInternalServerError
		end.Message = fmt.Sprintf("Internal error occurred: %v", fmt.Errorf(failed, err))
	}
	text := []byte(end.Message)
	if c.object {
		if text, err = json.Marshal(end); err != nil {
			return
		}
	}
	if len(text) > 0 {
		_, _ = c.status.Write(text)
	}
}

// webSocketSession has a client that speaks WebSocket, where each message begins with the
// number of its stream.
func (s *server) webSocketSession(w http.ResponseWriter, r *http.Request, o options) (*session, bool) {
	channels := make([]wsstream.ChannelType, 5) // stdin, stdout, stderr, error, sizes
	for i, asked := range []bool{o.stdin, o.stdout, o.stderr} {
		switch {
		case asked && i == 0:
			channels[i] = wsstream.ReadChannel
		case asked:
			channels[i] = wsstream.WriteChannel
		}
	}
	channels[3], channels[4] = wsstream.WriteChannel, wsstream.ReadChannel
	c, protocol, streams, ok := s.webSocket(w, r, channels, "", "channel.k8s.io", "v4.channel.k8s.io")
	if !ok {
		return nil, false
	}
	// An empty message says that the streams are there.
	first := slices.Index(channels, wsstream.WriteChannel)
	_, _ = streams[first].Write(nil)
	made := &session{client: c, status: streams[3], resize: streams[4], object: protocol == "v4.channel.k8s.io" || protocol == "v4.base64.channel.k8s.io"}
	if o.stdin {
		made.stdin = streams[0]
	}
	if o.stdout {
		made.stdout = streams[1]
	}
	if o.stderr {
		made.stderr = streams[2]
	}
	return made, true
}
