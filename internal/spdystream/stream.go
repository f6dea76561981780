package spdystream

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// minChunk and maxChunk are what a stream takes for small pieces, of which many share one.
const (
	minChunk = 512
	maxChunk = 4 << 10
)

// A Stream is one of a connection's. All but the first fields are guarded by its mutex.
type Stream struct {
	conn    *Connection
	id      uint32
	parent  *Stream
	headers http.Header
	cost    int           // what the headers take, of a stream of the other end's
	remote  bool          // the other end opened it
	started chan struct{} // closed when there is a reply, or will not be; nil if remote

	changed  sync.Cond
	startErr error
	replied  bool
	chunks   [][]byte // what is unread
	taken    int      // what is read of the first
	received []received
	unread   int // of chunks and received

	remoteClosed bool // the other end sends no more
	wasReset     bool // by the other end
	finished     bool // nothing more is to be written
	localClosed  bool // and that was written, or never will be
	released     bool // whom the stream was given to has closed it
	over         bool // both ends have
}

// received are headers that came after the stream was opened.
type received struct {
	headers http.Header
	cost    int
}

// wants says whether what the other end sends is for somebody; not before the reply to
// a stream of this end's.
func (s *Stream) wants() bool {
	return s != nil && !s.remoteClosed && (s.remote || s.replied)
}

// put holds what is in a piece; whether it holds the piece itself, which is full enough.
func (s *Stream) put(piece []byte) bool {
	if len(piece) >= cap(piece)/2 {
		s.chunks = append(s.chunks, piece)
		return true
	}
	size := minChunk
	if n := len(s.chunks); n > 0 {
		last := s.chunks[n-1]
		fits := min(cap(last)-len(last), len(piece))
		s.chunks[n-1] = append(last, piece[:fits]...)
		piece, size = piece[fits:], max(size, min(2*cap(last), maxChunk))
	}
	if len(piece) > 0 {
		s.chunks = append(s.chunks, append(make([]byte, 0, max(size, len(piece))), piece...))
	}
	return false
}

// count adds to what is unread.
func (s *Stream) count(n int) {
	s.unread += n
	s.conn.unread += n
	if n < 0 {
		s.conn.room.Broadcast()
	}
}

// Read reads what the other end wrote, and gives io.EOF once it has closed the stream, or
// the connection has ended.
func (s *Stream) Read(b []byte) (n int, err error) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	for len(s.chunks) == 0 && !s.remoteClosed && len(b) > 0 {
		s.changed.Wait()
	}
	if len(s.chunks) == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	for len(s.chunks) > 0 && n < len(b) {
		first := s.chunks[0]
		m := copy(b[n:], first[s.taken:])
		n += m
		if s.taken += m; s.taken == len(first) {
			s.chunks[0], s.taken = nil, 0
			s.chunks = s.chunks[1:]
			if cap(first) == pieceSize {
				pieces.Put(&first)
			}
		}
	}
	if len(s.chunks) == 0 {
		s.chunks = nil
	}
	s.count(-n)
	s.settle()
	return n, nil
}

// ReceiveHeader returns headers that came after the stream was opened.
func (s *Stream) ReceiveHeader() (http.Header, error) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	for len(s.received) == 0 {
		if s.remoteClosed {
			return nil, errors.New("stream closed")
		}
		s.changed.Wait()
	}
	first := s.received[0]
	s.received[0] = received{}
	s.received = s.received[1:]
	s.count(-first.cost)
	s.settle()
	return first.headers, nil
}

// Write writes all of data. A stream that the other end has reset takes it and drops it,
// as with the library: port-forward takes an error for one of the pod's, and ends all.
func (s *Stream) Write(data []byte) (int, error) {
	if err := s.WriteData(data, false); err != nil {
		return 0, err
	}
	return len(data), nil
}

// WriteData writes data, and with fin that there will be no more. On a stream of the
// other end's it waits for the reply.
func (s *Stream) WriteData(data []byte, fin bool) error {
	c := s.conn
	c.mu.Lock()
	for s.remote && !s.replied && !s.finished && !c.ended {
		s.changed.Wait()
	}
	err, dropped := s.finish(fin), s.wasReset && !fin
	c.mu.Unlock()
	if err != nil || dropped {
		return err
	}
	defer s.sent(fin)
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		n := min(len(data), maxPiece)
		last := n == len(data)
		err := c.put(func(b []byte) []byte { return appendData(b, s.id, finFlag(fin && last), data[:n]) })
		if err != nil || last {
			return err
		}
		data = data[n:]
	}
}

// finish says whether something may be written, and whether it is the last.
func (s *Stream) finish(fin bool) error {
	if fin {
		s.released = true
		defer s.settle()
	}
	if err := s.conn.writable(); err != nil {
		return err
	}
	if s.finished {
		if s.wasReset && !fin {
			return nil
		}
		return ErrWriteClosedStream
	}
	s.finished = fin
	return nil
}

// sent is called when a frame was written, the last one of this end if fin.
func (s *Stream) sent(fin bool) {
	if !fin {
		return
	}
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.localClosed = true
	s.settle()
}

// Close says that this end writes no more. What the other end writes can still be read.
func (s *Stream) Close() error { return s.WriteData(nil, true) }

// Reset ends the stream for both ends. What was not read is dropped.
func (s *Stream) Reset() error { return s.abandon(statusCancel) }

// Cancel is Reset for who opened the stream.
func (s *Stream) Cancel() error { return s.abandon(statusCancel) }

// Refuse is Reset for a stream that was not replied to.
func (s *Stream) Refuse() error {
	s.conn.mu.Lock()
	replied := s.replied
	s.conn.mu.Unlock()
	if replied {
		return nil
	}
	return s.abandon(statusRefused)
}

func (s *Stream) abandon(status uint32) error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.drop(status)
	return nil
}

// drop ends a stream here, and says so to the other end if it expects more and status is
// not 0.
func (s *Stream) drop(status uint32) {
	c := s.conn
	if !s.finished && status != 0 && c.writable() == nil {
		c.reply(appendControl(nil, rstStream, 0, nil, s.id, status))
	}
	s.count(-s.unread)
	s.chunks, s.received, s.taken = nil, nil, 0
	s.remoteClosed, s.finished, s.localClosed, s.released = true, true, true, true
	s.start(ErrReset)
	s.changed.Broadcast()
	s.settle()
}

// ended is drop when the connection has ended, but what has come can still be read,
// unless the stream was never accepted.
func (s *Stream) ended() {
	if s.remote && !s.replied {
		s.count(-s.unread)
		s.chunks, s.received, s.taken = nil, nil, 0
	}
	s.remoteClosed, s.localClosed, s.released = true, true, true
	s.start(errClosed)
	s.changed.Broadcast()
	s.settle()
}

// start gives the result of Wait to a stream of this end's that has none.
func (s *Stream) start(err error) {
	if !s.remote && !s.replied {
		s.replied, s.startErr = true, err
		close(s.started)
	}
}

func (s *Stream) remoteFinish() {
	s.remoteClosed = true
	s.changed.Broadcast()
	s.settle()
}

func (s *Stream) remoteReset() {
	s.wasReset, s.finished, s.localClosed = true, true, true
	s.start(ErrReset)
	s.remoteFinish()
}

// settle forgets a stream that both ends have closed and that was read to its end. One
// that the other end has opened and reset remains until this end has closed it, or it
// could make one after the other.
func (s *Stream) settle() {
	c := s.conn
	if !s.over && s.remoteClosed && s.localClosed {
		s.over = true
		c.open--
		c.leave()
	}
	if !s.over || s.unread > 0 || s.remote && !s.released || c.streams[s.id] != s {
		return
	}
	delete(c.streams, s.id)
	if s.remote {
		c.accepted--
		c.headers -= s.cost
	}
}

// Wait returns when there is a reply to a stream that this end has opened.
func (s *Stream) Wait() error { return s.WaitTimeout(0) }

// WaitTimeout is Wait, or ErrTimeout; 0 is no timeout.
func (s *Stream) WaitTimeout(timeout time.Duration) error {
	if s.remote {
		return nil
	}
	if err := await(s.started, timeout); err != nil {
		return err
	}
	return s.startErr
}

// SendReply accepts a stream of the other end's.
func (s *Stream) SendReply(headers http.Header, fin bool) error {
	if !s.remote {
		return errors.New("cannot reply on initiated stream")
	}
	c := s.conn
	c.writing.Lock() // what waits for the reply writes after it
	defer c.writing.Unlock()
	c.mu.Lock()
	done, err := s.replied || s.wasReset, error(nil)
	if !done {
		err = s.finish(fin)
	}
	c.mu.Unlock()
	if done || err != nil {
		return err
	}
	defer s.sent(fin)
	block := c.block(headers)
	if err := c.put(func(b []byte) []byte { return appendControl(b, synReply, finFlag(fin), block, s.id) }); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.replied = true
	s.changed.Broadcast()
	return nil
}

// SendHeader sends more headers.
func (s *Stream) SendHeader(headers http.Header, fin bool) error {
	c := s.conn
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	err, dropped := s.finish(fin), s.wasReset && !fin
	c.mu.Unlock()
	if err != nil || dropped {
		return err
	}
	defer s.sent(fin)
	block := c.block(headers)
	return c.put(func(b []byte) []byte { return appendControl(b, moreHeaders, finFlag(fin), block, s.id) })
}

// CreateSubStream opens a stream whose parent is this one.
func (s *Stream) CreateSubStream(headers http.Header, fin bool) (*Stream, error) {
	return s.conn.CreateStream(headers, s, fin)
}

// Parent is the stream that this end has opened this one with, or nil.
func (s *Stream) Parent() *Stream { return s.parent }

// Headers are those that the stream was opened with.
func (s *Stream) Headers() http.Header { return s.headers }

// Identifier is the stream's number on its connection.
func (s *Stream) Identifier() uint32 { return s.id }
