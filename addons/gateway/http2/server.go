// Package http2 serves HTTP/2: it calls a handler for each stream of a connection. Frames
// are read, and header blocks decoded and checked, by golang.org/x/net; what is written is
// gathered while a write is under way. It reads and writes connections.
package http2

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"knarr/addons/gateway/socket"
	"knarr/internal/run"
)

// Limits of a connection.
const (
	maxStreams    = 250       // at once, with their handlers
	maxHeaderList = 64 << 10  // bytes of a request's fields
	maxFrame      = 16 << 10  // that a client may send
	streamWindow  = 256 << 10 // that a client may send of one body before it is read
	connWindow    = 1 << 20   // of all bodies
	maxQueue      = 256 << 10 // of frames that a client does not take
	maxQueued     = 96 << 10  // of them, before a stream waits
	maxRefused    = 1000      // streams that were too many
	maxEmpty      = 1000      // frames of data without data
	maxCanceled   = 200       // streams that the client gave up in cancelTime, beyond those that were answered
	cancelTime    = 10 * time.Second
	maxControls   = 10_000 // frames besides requests and their bodies in controlTime, beyond
	controlTime   = 10 * time.Second
	// streamControls for each request and one for each controlBytes that were sent.
	streamControls = 8
	controlBytes   = 32
	stallTime      = 60 * time.Second // in which a stream must send or take something
	stallTick      = 5 * time.Second
	idleTime       = 75 * time.Second
	prefaceTime    = 10 * time.Second
	writeTime      = 60 * time.Second
	lingerTime     = time.Second
	drainTime      = time.Second // in which streams that are on their way are still taken
	maxWorkers     = 16          // goroutines that wait for the next stream
)

// A Server serves connections that others accept.
type Server struct {
	// Handler is called for each request. The request, its header and the answer's are used
	// again afterwards.
	Handler http.Handler

	mu      sync.Mutex
	conns   map[*conn]struct{}
	closing bool
	none    chan struct{} // closed once there are no connections; nil while there are none
	idle    sync.Cond
}

// NewServer is a Server without connections.
func NewServer(h http.Handler) *Server {
	s := &Server{Handler: h, conns: map[*conn]struct{}{}}
	s.idle.L = &s.mu
	return s
}

// A conn is one connection. mu guards what both its reader and its streams use.
type conn struct {
	server *Server
	nc     net.Conn
	idler  socket.Idler // nil without one
	tls    *tls.ConnectionState
	remote string
	ctx    context.Context
	cancel context.CancelFunc
	in     *bufio.Reader
	framer *http2.Framer // for reading
	readBy time.Time     // the deadline for reads that the connection has
	work   chan *stream  // to goroutines that wait

	mu      sync.Mutex
	changed sync.Cond // windows grew, the queue shrank, or the connection failed
	streams map[uint32]*stream
	running int // handlers
	waiting int // goroutines
	last    uint32
	refused int
	empty   int
	// canceled is how many streams the client gave up since canceledAt.
	canceled   int
	canceledAt time.Time
	// controls is how many frames of control came since controlsAt, less what is granted.
	controls   int
	controlsAt time.Time
	resets     [64]uint32 // streams that were reset here; what was on its way for them is ignored
	nextOf     int        // of resets
	goAway     bool       // no further streams are taken
	leaving    bool       // the client was told so
	parked     bool       // the idler was told that there are no streams
	failed     error
	held       int64 // bytes of bodies that nobody has read yet
	pending    int64 // that were read, and that the client was not told of

	window        int64 // that the client takes, of all streams
	initialWindow int64
	frameSize     int

	out, spare []byte
	writing    bool
	writeBy    time.Time
	resize     bool // the next header block says that no table is used
}

// Serve serves a connection until its end. An idler, if there is one, is told while it has
// no streams.
func (s *Server) Serve(nc net.Conn, idler socket.Idler, state *tls.ConnectionState) {
	c := &conn{server: s, nc: nc, idler: idler, tls: state, remote: nc.RemoteAddr().String(), streams: map[uint32]*stream{}, work: make(chan *stream),
		window: 65535, initialWindow: 65535, frameSize: 16 << 10}
	c.changed.L = &c.mu
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.in = bufio.NewReaderSize(nc, 8<<10)
	c.framer = http2.NewFramer(nil, c.in)
	c.framer.SetMaxReadFrameSize(maxFrame)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.MaxHeaderListSize = maxHeaderList
	c.framer.SetReuseFrames()
	if !s.add(c) {
		_ = nc.Close()
		return
	}
	defer s.remove(c)
	defer func() {
		c.fail(net.ErrClosed)
		c.cancel()
		_ = nc.Close()
		c.mu.Lock()
		for c.running > 0 {
			c.changed.Wait()
		}
		c.mu.Unlock()
		close(c.work)
	}()
	defer run.Recover("gateway HTTP/2 connection")
	c.serve()
}

func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.conns[c] = struct{}{}
	if s.none == nil {
		none := make(chan struct{})
		s.none = none
		run.Go("gateway: HTTP/2 streams that stall", func() { s.abortStalled(none) })
	}
	return true
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if len(s.conns) == 0 {
		close(s.none)
		s.none = nil
		s.idle.Broadcast()
	}
}

// abortStalled ends streams that have waited for their clients for too long, whatever else
// their connections bring. It ends when there are no connections.
func (s *Server) abortStalled(none <-chan struct{}) {
	ticker := time.NewTicker(stallTick)
	defer ticker.Stop()
	for {
		select {
		case <-none:
			return
		case now := <-ticker.C:
			s.mu.Lock()
			for c := range s.conns {
				c.abortStalled(now)
			}
			s.mu.Unlock()
		}
	}
}

// abortStalled ends streams that could send nothing for stallTime, and those whose bodies
// did not come, and says so of a connection without streams that it may make room. A stream whose answer has begun may wait for more of its body as long as
// the connection is alive: both sides may be talking, now and then.
func (c *conn) abortStalled(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idler != nil && !c.parked && len(c.streams) == 0 {
		c.parked = true
		c.idler.Park(func() { _ = c.nc.SetReadDeadline(time.Unix(1, 0)) })
	}
	for _, st := range c.streams {
		if !st.sendSince.IsZero() && now.Sub(st.sendSince) >= stallTime ||
			!st.readSince.IsZero() && now.Sub(st.readSince) >= stallTime && !st.answered {
			st.abort(errTooSlow)
		}
	}
}

// Shutdown lets the streams end, takes no further connections, and says so to the clients.
// When ctx ends, everything does.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.closing = true
	for c := range s.conns {
		c.leave()
	}
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			_ = c.nc.Close()
		}
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.conns) > 0 {
		s.idle.Wait()
	}
}

// leave tells the client that it should use another connection. Streams that are on
// their way are served.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving {
		return
	}
	c.leaving = true
	c.appendGoAway(1<<31-1, http2.ErrCodeNo)
	run.Go("gateway: GOAWAY", c.flush)
	run.AfterFunc("gateway: drain HTTP/2", drainTime, func() {
		c.mu.Lock()
		c.goAway = true
		c.appendGoAway(c.last, http2.ErrCodeNo)
		ended := len(c.streams) == 0
		c.mu.Unlock()
		c.flush()
		if ended {
			_ = c.nc.SetReadDeadline(time.Unix(1, 0))
		}
	})
}

var errPreface = errors.New("not HTTP/2")

// serve reads frames until the connection ends.
func (c *conn) serve() {
	_ = c.nc.SetReadDeadline(time.Now().Add(prefaceTime))
	preface, err := c.in.Peek(len(http2.ClientPreface))
	if err == nil && string(preface) != http2.ClientPreface {
		err = errPreface
	}
	if err == nil {
		_, err = c.in.Discard(len(http2.ClientPreface))
	}
	if err != nil {
		return
	}
	c.mu.Lock()
	c.appendSettings()
	c.mu.Unlock()
	c.flush()
	for first := true; ; first = false {
		if err = c.await(); err != nil {
			break
		}
		var frame http2.Frame
		frame, err = c.framer.ReadFrame()
		if err == nil && first {
			if _, ok := frame.(*http2.SettingsFrame); !ok {
				err = http2.ConnectionError(http2.ErrCodeProtocol)
			}
		}
		if err == nil {
			err = c.handle(frame)
		}
		if stream, ok := errors.AsType[http2.StreamError](err); ok {
			err = c.resetStream(stream.StreamID, stream.Code)
		}
		if err != nil {
			break
		}
	}
	c.end(err)
}

// await waits for a frame's first byte, as long as streams go on or idleTime.
func (c *conn) await() error {
	if c.in.Buffered() >= 9 {
		return nil
	}
	for {
		if now := time.Now(); c.readBy.Sub(now) < idleTime/2 || c.readBy.Sub(now) > idleTime {
			c.readBy = now.Add(idleTime)
			_ = c.nc.SetReadDeadline(c.readBy)
		}
		if c.over() {
			return errLeft
		}
		_, err := c.in.Peek(1)
		if err == nil {
			return nil
		}
		c.readBy = time.Time{}
		if !errors.Is(err, os.ErrDeadlineExceeded) || !c.abortWaiting() {
			return err
		}
	}
}

// abortWaiting ends the streams that have waited in vain for something of the client, and
// reports whether there are others.
func (c *conn) abortWaiting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range c.streams {
		if !st.sendSince.IsZero() || !st.readSince.IsZero() {
			st.abort(errTooSlow)
		}
	}
	return len(c.streams) > 0 && !c.goAway
}

var errLeft = errors.New("the client was told to leave")

// over reports whether the last stream of a connection that was to end has ended.
func (c *conn) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.goAway && len(c.streams) == 0
}

// end tells the client why the connection ends, and lets it read that.
func (c *conn) end(err error) {
	code := http2.ErrCodeNo
	if of, ok := errors.AsType[http2.ConnectionError](err); ok {
		code = http2.ErrCode(of)
	} else if errors.Is(err, http2.ErrFrameTooLarge) {
		code = http2.ErrCodeFrameSize
	}
	c.mu.Lock()
	broken := c.failed != nil
	c.goAway = true
	c.appendGoAway(c.last, code)
	c.mu.Unlock()
	if broken {
		return
	}
	if code != http2.ErrCodeNo {
		c.cancel() // the streams end with the connection
	}
	c.flush()
	c.mu.Lock()
	for c.failed == nil && (c.writing || len(c.out) > 0) {
		c.changed.Wait() // another goroutine writes
	}
	c.mu.Unlock()
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(lingerTime))
	buf := make([]byte, 1<<10)
	for range 256 {
		if _, err := c.nc.Read(buf); err != nil {
			return
		}
	}
}

// fail ends what waits for the connection.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
	for _, st := range c.streams {
		st.abort(err)
	}
	c.changed.Broadcast()
}
