package http3

import (
	"context"
	"io"
	"math"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"

	"knarr/internal/run"
)

// A code is why a stream or a connection ended, as RFC 9114 and RFC 9204 number it.
type code uint64

const (
	noError              code = 0x100
	generalProtocolError code = 0x101
	internalError        code = 0x102
	streamCreationError  code = 0x103
	closedCriticalStream code = 0x104
	frameUnexpected      code = 0x105
	frameError           code = 0x106
	excessiveLoad        code = 0x107
	settingsError        code = 0x109
	missingSettings      code = 0x10a
	requestRejected      code = 0x10b
	requestCancelled     code = 0x10c
	requestIncomplete    code = 0x10d
	messageError         code = 0x10e
	decompressionFailed  code = 0x200
	encoderStreamError   code = 0x201
)

// Types of the streams that carry no requests.
const (
	controlStream = 0x0
	pushStream    = 0x1
	encoderStream = 0x2
	decoderStream = 0x3
)

// A conn is one connection.
type conn struct {
	server *Server
	quic   *quic.Conn
	remote string
	group  run.Group // its streams

	mu       sync.Mutex
	control  *quic.SendStream
	running  int           // requests
	next     quic.StreamID // that the client was not heard of yet
	leaving  bool          // the client was told that it should use another connection
	refusing bool          // further requests are refused
	opened   [4]bool       // the client's streams, by type
	// canceled is how many streams the client gave up since canceledAt.
	canceled   int
	canceledAt time.Time
}

func newConn(s *Server, q *quic.Conn) *conn {
	return &conn{server: s, quic: q, remote: q.RemoteAddr().String()}
}

// close ends the connection, and tells the client why.
func (c *conn) close(why code) { _ = c.quic.CloseWithError(quic.ApplicationErrorCode(why), "") }

// serve takes the client's streams until the connection ends, and waits for their handlers.
func (c *conn) serve() {
	defer c.group.Wait()
	control, err := c.quic.OpenUniStream()
	if err != nil {
		c.close(generalProtocolError) // every client lets the server have three of them
		return
	}
	if _, err := control.Write(appendSettings([]byte{controlStream})); err != nil {
		c.close(closedCriticalStream)
		return
	}
	c.mu.Lock()
	c.control = control
	c.mu.Unlock()
	c.group.Go("gateway HTTP/3 control streams", func() {
		for {
			st, err := c.quic.AcceptUniStream(context.Background())
			if err != nil {
				return
			}
			c.group.Go("gateway HTTP/3 control stream", func() { c.serveControl(st) })
		}
	})
	for {
		st, err := c.quic.AcceptStream(context.Background())
		if err != nil {
			return // the connection has ended
		}
		if !c.begin(st.StreamID()) {
			reset(st, requestRejected)
			st.ReleaseStreamCredit()
			continue
		}
		c.group.Go("gateway HTTP/3 request", func() { c.serveRequest(st) })
	}
}

// begin counts a request in, unless the client was to use another connection.
func (c *conn) begin(id quic.StreamID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusing {
		return false
	}
	c.running++
	c.next = max(c.next, id+4)
	return true
}

// end counts a request out. canceled says that the client gave it up.
func (c *conn) end(canceled bool) {
	c.mu.Lock()
	c.running--
	over := c.refusing && c.running == 0
	tooMany := false
	if canceled {
		if now := time.Now(); now.Sub(c.canceledAt) > cancelTime {
			c.canceled, c.canceledAt = 0, now
		}
		c.canceled++
		tooMany = c.canceled > maxCanceled
	} else {
		c.canceled = max(c.canceled-1, 0)
	}
	c.mu.Unlock()
	switch {
	case tooMany:
		c.close(excessiveLoad)
	case over:
		c.linger()
	}
}

// linger ends the connection once the client has had time to take the last answer, which
// is nobody's but this process' to send again, unless it ends the connection itself.
func (c *conn) linger() {
	run.AfterFunc("gateway: end HTTP/3 connection", lingerTime, func() { c.close(noError) })
}

// leave tells the client to use another connection. Streams that are on their way are
// served.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving {
		return
	}
	c.leaving = true
	run.Go("gateway: GOAWAY", func() { c.goAway(math.MaxUint64>>2 - 3) })
	run.AfterFunc("gateway: drain HTTP/3", drainTime, func() {
		c.mu.Lock()
		c.refusing = true
		over, next := c.running == 0, c.next
		c.mu.Unlock()
		c.goAway(uint64(next))
		if over {
			c.linger()
		}
	})
}

// goAway says which streams are not served any more: this one and those after it.
func (c *conn) goAway(from uint64) {
	c.mu.Lock()
	control := c.control
	c.mu.Unlock()
	if control == nil {
		return
	}
	_ = control.SetWriteDeadline(time.Now().Add(drainTime))
	b := quicvarint.Append(nil, frameGoAway)
	b = quicvarint.Append(b, uint64(quicvarint.Len(from)))
	_, _ = control.Write(quicvarint.Append(b, from))
}

// serveControl reads a stream that carries no request.
func (c *conn) serveControl(st *quic.ReceiveStream) {
	f := &frames{r: st}
	kind, err := f.number()
	if err != nil {
		st.CancelRead(quic.StreamErrorCode(streamCreationError))
		st.ReleaseStreamCredit()
		return
	}
	if kind > decoderStream {
		st.CancelRead(quic.StreamErrorCode(streamCreationError)) // of an extension that is not known
		st.ReleaseStreamCredit()
		return
	}
	c.mu.Lock()
	twice := c.opened[kind]
	c.opened[kind] = true
	c.mu.Unlock()
	if twice || kind == pushStream { // only servers push
		c.close(streamCreationError)
		return
	}
	if kind == controlStream {
		c.close(f.control())
		return
	}
	c.close(tables(st, kind))
}

// tables reads what a client says of tables of fields, of which none are used here: it may
// acknowledge nothing, and only set the size of its own to zero. It returns why that ended.
func tables(r io.Reader, kind uint64) code {
	var b [64]byte
	for {
		n, err := r.Read(b[:])
		for _, octet := range b[:n] {
			// 001 and a size of zero; 01 and the number of a stream whose fields are given up.
			if kind == encoderStream && octet != 0x20 || kind == decoderStream && octet&0xc0 == 0 {
				return encoderStreamError + code(kind-encoderStream)
			}
		}
		if err != nil {
			return closedCriticalStream
		}
	}
}

// reset ends both directions of a stream.
func reset(st *quic.Stream, why code) {
	st.CancelRead(quic.StreamErrorCode(why))
	st.CancelWrite(quic.StreamErrorCode(why))
}
