package streaming

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

const (
	// lastWrite bounds what is written to a client once nothing is left to do for it.
	lastWrite = 30 * time.Second
	// stalled is how long a connection is not read from before it is asked for its state.
	stalled = 30 * time.Second
)

// errEnded refuses a stream of a client that has left, or that has all it asked for.
var errEnded = errors.New("no stream is waited for")

// A client is one connection, until it ends. The context then ends too, so do all streams.
type client struct {
	context.Context
	server *server
	cancel context.CancelFunc
	conn   *conn
	spdy   httpstream.Connection // nil for WebSocket
	// leave ends what is no stream of SPDY.
	leave func()
	// done is closed once the server has done all it does for this client.
	done chan struct{}

	mu      sync.Mutex
	ended   bool
	streams map[uint32]httpstream.Stream
}

// newClient is one whose connection comes through the writer that is given with it.
func (s *server) newClient(w http.ResponseWriter, r *http.Request) (*client, *hijacker) {
	c := &client{server: s, done: make(chan struct{}), streams: map[uint32]httpstream.Stream{}, leave: func() {}}
	c.Context, c.cancel = context.WithCancel(context.WithoutCancel(r.Context()))
	return c, &hijacker{ResponseWriter: w, client: c}
}

// upgrade has the client speak SPDY, and calls accept with each stream that it creates. Where
// it does not, it has been answered.
func (c *client) upgrade(w http.ResponseWriter, r *http.Request, protocols []string, accept func(httpstream.Stream, <-chan struct{}) error) (protocol string, ok bool) {
	protocol, err := httpstream.Handshake(r, w, protocols)
	if err != nil {
		return "", false
	}
	c.spdy = spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
		if err := c.add(s); err != nil {
			return err
		}
		if err := accept(s, replied); err != nil {
			c.remove(s.Identifier())
			return err
		}
		return nil
	})
	if c.spdy == nil {
		if c.conn != nil {
			_ = c.conn.Close()
		}
		return "", false
	}
	c.spdy.SetIdleTimeout(c.server.config.StreamIdleTimeout)
	c.server.config.Go("stream client: watch", func() { c.watch(c.spdy.CloseChan()) })
	return protocol, true
}

// watch ends the client once its connection has ended, or the server stops.
func (c *client) watch(closed <-chan bool) {
	tick := time.NewTicker(stalled)
	defer tick.Stop()
	var before uint64
	for {
		select {
		case <-closed:
		case <-c.conn.gone:
		case <-c.server.stopped:
		case <-c.done:
			return
		case <-tick.C:
			// What is sent to who does not read is not read from the connection, whose end
			// would not be seen either.
			reads, reading := c.conn.reads.Load(), c.conn.reading.Load()
			if reading || reads != before || !c.conn.left() {
				before = reads
				continue
			}
		}
		c.end()
		return
	}
}

func (c *client) add(s httpstream.Stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return errEnded
	}
	c.streams[s.Identifier()] = s
	return nil
}

func (c *client) remove(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, id)
}

// end has the client's streams end: reads give EOF, writes fail.
func (c *client) end() {
	c.cancel()
	_ = c.conn.Close() // first, so that no write holds up the others
	for _, s := range c.all() {
		_ = s.Reset()
	}
	c.leave()
}

// close ends a client for which all is done, once it has what was written to it.
func (c *client) close() {
	c.conn.last()
	c.cancel() // what is still being accepted is refused
	if c.spdy == nil {
		c.leave()
	} else {
		for _, s := range c.all() {
			_ = s.Reset()
		}
		_ = c.spdy.Close()
		timer := time.NewTimer(lastWrite)
		defer timer.Stop()
		select { // the library closes the connection, after the last frame
		case <-c.spdy.CloseChan():
		case <-c.conn.gone:
		case <-timer.C:
		}
	}
	close(c.done)
	c.end()
}

// all gives the streams that there are; there will be no others.
func (c *client) all() map[uint32]httpstream.Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	all := c.streams
	c.streams = nil
	return all
}

// A conn knows when its client has left.
type conn struct {
	net.Conn
	rest []byte // read with the request
	// frames is what is read of a client of WebSocket; nil: what it sends.
	frames io.Reader
	once   sync.Once
	gone   chan struct{}
	// reading is whether a Read waits, reads how many there have been.
	reading atomic.Bool
	reads   atomic.Uint64
	// final is whether what is written now is the last there will be.
	finalMu sync.Mutex
	final   bool
}

// last bounds the time that a client takes to read what is left.
func (c *conn) last() {
	c.finalMu.Lock()
	defer c.finalMu.Unlock()
	if !c.final {
		c.final = true
		_ = c.Conn.SetWriteDeadline(time.Now().Add(lastWrite))
	}
}

// SetDeadline is what keeps WebSocket connections until they are idle.
func (c *conn) SetDeadline(t time.Time) error {
	c.finalMu.Lock()
	defer c.finalMu.Unlock()
	if c.final {
		return c.SetReadDeadline(t)
	}
	return c.Conn.SetDeadline(t)
}

func (c *conn) Read(p []byte) (n int, err error) {
	if c.frames != nil {
		return c.frames.Read(p)
	}
	return c.read(p)
}

func (c *conn) read(p []byte) (n int, err error) {
	if len(c.rest) > 0 {
		n = copy(p, c.rest)
		c.rest = c.rest[n:]
		return n, nil
	}
	c.reading.Store(true)
	n, err = c.Conn.Read(p)
	c.reading.Store(false)
	c.reads.Add(1)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.once.Do(func() { close(c.gone) })
	}
	return n, err
}

func (c *conn) Close() error {
	defer c.once.Do(func() { close(c.gone) })
	return c.Conn.Close()
}

// left asks the kernel whether the client has closed the connection.
func (c *conn) left() (left bool) {
	under := c.Conn
	if t, ok := under.(interface{ NetConn() net.Conn }); ok {
		under = t.NetConn()
	}
	s, ok := under.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			left = info.State != unix.BPF_TCP_ESTABLISHED
		}
	})
	return left || err != nil
}

// A hijacker gives its client's connection to who takes it over.
type hijacker struct {
	http.ResponseWriter
	client *client
	frames func(io.Reader) io.Reader // Config.Frames, for a client of WebSocket
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, buffers, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	read, _ := buffers.Reader.Peek(buffers.Reader.Buffered())
	h.client.conn = &conn{Conn: c, rest: bytes.Clone(read), gone: make(chan struct{})}
	if h.frames != nil {
		h.client.conn.frames = h.frames(readerFunc(h.client.conn.read))
	}
	buffers.Reader.Reset(h.client.conn)
	return h.client.conn, buffers, nil
}

// discard takes what a client sends on a stream that nobody reads.
func discard(s io.Reader) { _, _ = io.Copy(io.Discard, s) }
