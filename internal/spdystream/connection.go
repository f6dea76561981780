// Package spdystream stands for github.com/moby/spdystream, by which exec, attach and
// port-forward have many streams on one connection. There one frame of headers that a
// client sends can ask for 20 GB, what nobody reads is held up to 4 GB, and stays when the
// client has left. Here all that the other end can make this one hold has a bound, and
// goes with the connection. It reads and writes SPDY/3.1 on a connection that it is given.
package spdystream

import (
	"bufio"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// What streams and connections answer, as with the library.
var (
	ErrInvalidStreamId   = errors.New("Invalid stream id")
	ErrTimeout           = errors.New("Timeout occurred")
	ErrReset             = errors.New("Stream reset")
	ErrWriteClosedStream = errors.New("Write on closed stream")

	errClosed = errors.New("connection closed")
)

// Bounds of what the other end can make this one hold.
const (
	// maxStreams is how many of its streams there may be that are not closed here, or
	// not read to the end.
	maxStreams = 2000
	// maxHeaders is how much memory the headers of these may take.
	maxHeaders = 2 << 20
	// maxUnread is how much of a stream may be unread, and maxAllUnread of all; one
	// piece more may come. Then nothing is read from the connection until something is
	// read from the streams: SPDY's windows are not used, as the library does not.
	maxUnread    = 256 << 10
	maxAllUnread = 1 << 20
	// maxReplies is how many bytes of answers to pings and refused streams may wait to
	// be written before nothing is read either.
	maxReplies = 4 << 10
)

const (
	// flushTime is how long the end of a connection waits for its last frames to be sent.
	flushTime = 5 * time.Second
	// keepTime is how long a server keeps what nobody has read of a connection that has
	// ended: a process that does not read its input may live on for long.
	keepTime = time.Minute
)

// A StreamHandler is given each stream that the other end opens, one after the other, and
// replies to it or refuses it.
type StreamHandler func(stream *Stream)

// A Connection has streams of both ends.
type Connection struct {
	conn   net.Conn
	server bool
	closed chan bool

	// writing is held while frames are written; it is locked before mu.
	writing  lock
	deflated bool // headers were written

	mu       sync.Mutex
	room     sync.Cond // there may be room for what the other end sends
	streams  map[uint32]*Stream
	open     int // streams that at least one end still uses
	accepted int // streams of the other end among streams
	headers  int // what their headers take
	unread   int
	nextID   uint32
	peerID   uint32 // the other end's next one is this one, or a higher one

	arrived   []*Stream // not given to the handler yet
	accepting bool
	replies   []byte // frames that are written as soon as possible, by flush or before others
	flushing  bool
	pings     map[uint32]chan struct{}
	pingID    uint32

	goingAway bool // no new streams
	ended     bool
	writeErr  error

	closeTimeout, idleTimeout time.Duration
	idle, leaving             *time.Timer
	since                     time.Time
	active                    atomic.Int64 // when there was a frame last, since since
}

// A lock is a mutex that may be held for long: tests whose clock stands still see that
// who waits for it waits.
type lock chan struct{}

func (l lock) Lock()   { l <- struct{}{} }
func (l lock) Unlock() { <-l }

// NewConnection makes a connection of conn. Serve has to be called for it to work.
func NewConnection(conn net.Conn, server bool) (*Connection, error) {
	c := &Connection{conn: conn, server: server, closed: make(chan bool), since: time.Now(), writing: make(lock, 1)}
	c.room.L = &c.mu
	c.streams = map[uint32]*Stream{}
	c.nextID, c.peerID, c.pingID = 1, 2, 1
	if server {
		c.nextID, c.peerID, c.pingID = 2, 1, 2
	}
	return c, nil
}

// Serve reads the connection until its end, and gives the streams that the other end
// opens to newHandler.
func (c *Connection) Serve(newHandler StreamHandler) {
	defer c.contain()
	r := &reader{Reader: bufio.NewReaderSize(c.conn, 1<<10)}
	for {
		err := c.serve(r, newHandler)
		if _, wrong := errors.AsType[protocolError](err); wrong {
			c.accuse()
		}
		if err != nil {
			c.end()
			return
		}
	}
}

// contain has a panic end the connection, and not the process, which has others.
func (c *Connection) contain() {
	if p := recover(); p != nil {
		log.Printf("SPDY connection with %v ends by a panic: %v\n%s", c.conn.RemoteAddr(), p, debug.Stack())
		c.end()
	}
}

// accuse says that the other end has made a mistake, if it reads what is written to it.
func (c *Connection) accuse() {
	_ = c.conn.SetWriteDeadline(time.Now().Add(time.Second))
	c.mu.Lock()
	c.goingAway = true
	last := c.lastID()
	c.mu.Unlock()
	_ = c.write(func(b []byte) []byte { return appendControl(b, goAway, 0, nil, last, goAwayProtocolError) })
}

// lastID is that of the newest stream that was accepted.
func (c *Connection) lastID() uint32 {
	if c.peerID > 2 {
		return c.peerID - 2
	}
	return 0
}

// serve reads one frame, and does what it asks for.
func (c *Connection) serve(r *reader, newHandler StreamHandler) error {
	c.mu.Lock()
	for len(c.replies) > maxReplies && !c.ended {
		c.room.Wait()
	}
	c.mu.Unlock()
	f, err := r.frame()
	if err != nil {
		return err
	}
	c.touch()
	if !f.control {
		return c.data(r, f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s := c.streams[f.id]; f.kind {
	case synStream:
		c.opened(f, newHandler)
	case synReply:
		if s != nil && !s.remote && !s.replied {
			s.replied = true
			close(s.started)
			if f.flags&flagFin != 0 {
				s.remoteFinish()
			}
		}
	case moreHeaders:
		c.awaitRoom(s)
		if s.wants() {
			s.received = append(s.received, received{f.headers, f.cost})
			s.count(f.cost)
			s.changed.Broadcast()
			if f.flags&flagFin != 0 {
				s.remoteFinish()
			}
		}
	case rstStream:
		if s != nil {
			s.remoteReset()
		}
	case ping:
		c.pinged(f.id)
	case goAway:
		c.goingAway = true
		return io.EOF
	}
	return nil
}

// opened is called when the other end opens a stream.
func (c *Connection) opened(f frame, newHandler StreamHandler) {
	switch {
	case c.goingAway || c.ended:
		return
	case f.id < c.peerID || f.id&1 != c.peerID&1:
		c.reply(appendControl(nil, rstStream, 0, nil, f.id, statusProtocolError))
		return
	}
	c.peerID = f.id + 2
	if c.accepted >= maxStreams || c.headers+f.cost > maxHeaders {
		c.reply(appendControl(nil, rstStream, 0, nil, f.id, statusRefused))
		return
	}
	// Without the stream it names as its parent, which nobody asks for: each would keep the
	// one before, with its headers, when that has long ended.
	s := c.add(f.id, nil, f.headers)
	s.remote, s.cost = true, f.cost
	s.remoteClosed = f.flags&flagFin != 0
	s.finished = f.flags&flagUnidirectional != 0
	s.localClosed = s.finished
	c.accepted++
	c.headers += f.cost
	s.settle()
	c.arrived = append(c.arrived, s)
	if !c.accepting {
		c.accepting = true
		go c.accept(newHandler)
	}
}

func (c *Connection) add(id uint32, parent *Stream, h http.Header) *Stream {
	s := &Stream{conn: c, id: id, parent: parent, headers: h}
	s.changed.L = &c.mu
	c.streams[id] = s
	c.open++
	return s
}

// accept gives the streams that have arrived to the handler, which may take its time.
func (c *Connection) accept(newHandler StreamHandler) {
	defer c.contain()
	for {
		s := c.next()
		if s == nil {
			return
		}
		newHandler(s)
	}
}

func (c *Connection) next() *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.arrived) > 0 && !c.ended {
		s := c.arrived[0]
		c.arrived[0] = nil
		c.arrived = c.arrived[1:]
		if !s.wasReset {
			return s
		}
		s.released = true
		s.settle()
	}
	c.arrived, c.accepting = nil, false
	return nil
}

// data reads the data of a frame, piece by piece as it comes.
func (c *Connection) data(r *reader, f frame) error {
	for left := f.length; left > 0; {
		c.mu.Lock()
		s := c.streams[f.id]
		c.awaitRoom(s)
		c.mu.Unlock()
		piece := pieces.Get().(*[]byte)
		n, err := r.Read((*piece)[:min(left, maxPiece)])
		if !c.deliver(s, (*piece)[:n]) {
			pieces.Put(piece)
		}
		if err != nil {
			return err
		}
		left -= n
		c.touch()
	}
	if f.flags&flagFin != 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s := c.streams[f.id]; s.wants() {
			s.remoteFinish()
		}
	}
	return nil
}

// awaitRoom returns once more may be held of a stream, or what comes of it is for nobody.
func (c *Connection) awaitRoom(s *Stream) {
	for s.wants() && !c.ended && (s.unread >= maxUnread || c.unread >= maxAllUnread) {
		c.room.Wait()
	}
}

// deliver gives a piece to its stream; whether that holds it.
func (c *Connection) deliver(s *Stream, piece []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.wants() {
		return false
	}
	s.count(len(piece))
	s.changed.Broadcast()
	return s.put(piece)
}

// pinged answers a ping of the other end's, or takes the answer to one of this end's.
func (c *Connection) pinged(id uint32) {
	if id&1 != c.pingID&1 {
		c.reply(appendControl(nil, ping, 0, nil, id))
	} else if answered := c.pings[id]; answered != nil {
		close(answered)
		delete(c.pings, id)
	}
}

// Ping returns how long the other end takes to answer.
func (c *Connection) Ping() (time.Duration, error) {
	answered, start := make(chan struct{}), time.Now()
	c.mu.Lock()
	id := c.pingID
	if c.pingID += 2; c.pingID > maxID {
		c.pingID = 2 - c.pingID&1
	}
	if c.pings == nil {
		c.pings = map[uint32]chan struct{}{}
	}
	c.pings[id] = answered
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pings, id)
	}()
	if err := c.write(func(b []byte) []byte { return appendControl(b, ping, 0, nil, id) }); err != nil {
		return 0, err
	}
	select {
	case <-c.closed:
		return 0, errClosed
	case <-answered:
		return time.Since(start), nil
	}
}

// CreateStream opens a stream, and does not wait for the reply; Wait of the stream does.
func (c *Connection) CreateStream(headers http.Header, parent *Stream, fin bool) (*Stream, error) {
	c.writing.Lock() // until it is written: streams are opened in the order of their numbers
	defer c.writing.Unlock()
	c.mu.Lock()
	s, err := c.create(headers, parent)
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	parentID := uint32(0)
	if parent != nil {
		parentID = parent.id
	}
	block := append([]byte{0, 0}, c.block(headers)...) // the highest priority, no credentials
	err = c.put(func(b []byte) []byte { return appendControl(b, synStream, finFlag(fin), block, s.id, parentID) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		s.drop(0)
		return nil, err
	}
	if fin {
		s.finished, s.localClosed = true, true
		s.settle()
	}
	return s, nil
}

func (c *Connection) create(headers http.Header, parent *Stream) (*Stream, error) {
	if err := c.writable(); err != nil {
		return nil, err
	}
	if c.goingAway {
		return nil, errClosed
	}
	if c.nextID > maxID {
		return nil, ErrInvalidStreamId
	}
	s := c.add(c.nextID, parent, headers)
	s.started = make(chan struct{})
	c.nextID += 2
	return s, nil
}
