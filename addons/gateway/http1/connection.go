package http1

import (
	"errors"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"knarr/addons/gateway/socket"
)

// work is what a connection needs while it serves requests, and not while it is idle.
type work struct {
	reader  reader
	head    headWait
	refused error // why what came is no request
	fields  fieldSet
	answer  fieldSet
	request http.Request
	url     url.URL
	body    requestBody
	w       response
	out     []byte
}

var works = sync.Pool{New: func() any { return &work{out: make([]byte, 0, bufferSize), fields: fieldSet{noUnderscores: true}} }}

var (
	errIdle    = errors.New("no request came")
	errSlow    = errors.New("the request came too slowly")
	errClosing = errors.New("the server is closing")
	errParked  = errors.New("no request has come yet")
)

// serve serves requests one after the other. It reports whether the connection goes on
// elsewhere.
func (c *conn) serve() (elsewhere bool) {
	for {
		elsewhere, idle := c.serveBusy()
		if !idle || c.park() != nil {
			return elsewhere
		}
	}
}

// A step is what is to be done next with a connection.
type step int

const (
	stepWait   step = iota // there is no whole head yet
	stepServe              // a request was read
	stepNext               // a request was answered, and another may follow
	stepRefuse             // what came is no request: work.refused
	stepLinger             // the answer was the last one
	stepHTTP2              // the client speaks HTTP/2
	stepTaken              // the handler has taken the connection
	stepParked             // no request has come for a while
	stepEnd                // no more is to come
)

// serveBusy serves requests until none comes for a while, or the connection ends.
func (c *conn) serveBusy() (elsewhere, idle bool) {
	w := works.Get().(*work)
	defer c.giveBack(w)
	w.reader = reader{conn: c.nc}
	w.head = headWait{c, w}
	for {
		s := c.await(w)
		if s == stepServe {
			s = c.answer(w)
		}
		switch s {
		case stepNext:
			continue
		case stepRefuse:
			c.refuse(w, w.refused)
		case stepLinger:
			c.linger(w)
		case stepHTTP2:
			read := append([]byte("PRI * HTTP/2.0\r\n\r\n"), w.reader.unread()...)
			_ = c.nc.SetReadDeadline(time.Time{})
			c.server.HTTP2(c.nc, read)
		}
		return s == stepTaken || s == stepHTTP2, s == stepParked
	}
}

// giveBack lets another connection use what this one worked with, unless somebody may
// still hold a part of it.
func (c *conn) giveBack(w *work) {
	if c.taken {
		return
	}
	w.reader.from, w.reader.to = 0, 0
	w.reader.release()
	w.reader = reader{}
	w.request, w.url, w.refused = http.Request{}, url.URL{}, nil
	w.body, w.w, w.head = requestBody{}, response{}, headWait{}
	if cap(w.out) > 4*bufferSize {
		w.out = make([]byte, 0, bufferSize)
	}
	works.Put(w)
}

// await reads the head of a request. What it can, it serves meanwhile: requests that bring
// all of themselves.
func (c *conn) await(w *work) (s step) {
	w.reader.next()
	w.reader.waiter = &w.head
	if c.socket == nil {
		return c.read(w)
	}
	w.reader.since = time.Now()
	w.reader.arm(w.reader.since)
	for {
		err := c.socket.Poll(func() bool {
			s = c.ready(w)
			return s != stepWait
		})
		if err == nil {
			return s
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = w.reader.again()
		}
		if err != nil {
			return c.begin(w, "", err)
		}
	}
}

// ready serves the requests that have come whole, with nothing to wait for but their answers.
func (c *conn) ready(w *work) step {
	for {
		s := c.read(w)
		if s != stepServe || !c.whole(w) {
			return s
		}
		if s = c.answer(w); s != stepNext {
			return s
		}
		c.socket.Known = true
		w.reader.next()
		w.reader.waiter = &w.head
	}
}

// whole reports whether all of a request was read, and it asks for no other protocol: then
// the connection is not read while it is served.
func (c *conn) whole(w *work) bool {
	b := &w.body
	return (b.kind == bodyNone || b.kind == bodyLength && b.left <= int64(len(w.reader.unread()))) && !b.expects &&
		w.request.Header["Upgrade"] == nil
}

// read reads a request's head, or as much of it as is there if it may not wait.
func (c *conn) read(w *work) step {
	if !c.first && w.reader.arrived.IsZero() && len(w.reader.unread()) >= 2 && string(w.reader.unread()[:2]) == "\r\n" {
		w.reader.from += 2 // some clients end a body with one too many
	}
	head, err := w.reader.head()
	return c.begin(w, head, err)
}

// begin makes a request of a head.
func (c *conn) begin(w *work, head string, err error) step {
	if err == nil && c.first && head == "PRI * HTTP/2.0\r\n" && c.server.HTTP2 != nil && c.tls == nil {
		return stepHTTP2
	}
	if err == nil {
		c.first = false
		err = c.readRequest(w, head)
	}
	switch err {
	case nil:
		return stepServe
	case socket.Nothing:
		return stepWait
	case errParked:
		return stepParked
	}
	w.refused = err
	return stepRefuse
}

// answer serves a request that was read.
func (c *conn) answer(w *work) step {
	c.since.Store(w.reader.arrived.UnixNano())
	ok := c.call(w)
	c.since.Store(0)
	switch {
	case c.taken:
		return stepTaken
	case !ok || !c.finish(w):
		return stepLinger
	case w.reader.from == w.reader.to && c.server.closing.Load():
		return stepEnd
	}
	return stepNext
}

// A headWait is the waiter for a request's head.
type headWait struct {
	c *conn
	w *work
}

func (h *headWait) wait(since time.Time) error {
	arrived := h.w.reader.arrived
	now := time.Now()
	switch {
	case !arrived.IsZero() && now.Sub(arrived) > headTime:
		return errSlow
	case !arrived.IsZero() || h.c.raw != nil && h.c.readable():
		return nil
	case h.c.server.closing.Load():
		return errClosing
	case now.Sub(since) > idleTime:
		return errIdle
	}
	if h.c.raw == nil {
		return nil
	}
	return errParked
}

// readable reports whether there is something to read, be it the end.
func (c *conn) readable() (ready bool) {
	_ = c.raw.Control(func(fd uintptr) { ready = peek(fd) })
	return ready
}

func peek(fd uintptr) bool {
	var b [1]byte
	_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err != unix.EAGAIN && err != unix.EINTR
}

// park waits for a request without anything but the connection: no buffer, no maps.
// Meanwhile it may have to make room for others.
func (c *conn) park() error {
	_ = c.nc.SetReadDeadline(time.Now().Add(idleTime))
	if c.server.closing.Load() {
		return errClosing
	}
	if c.socket == nil || c.socket.Idler == nil {
		return c.raw.Read(peek)
	}
	c.socket.Idler.Park(func() { _ = c.socket.SetReadDeadline(time.Unix(1, 0)) })
	err := c.raw.Read(peek)
	if !c.socket.Idler.Unpark() {
		return errIdle
	}
	return err
}

// call runs the handler and reports whether it ended as it should.
func (c *conn) call(w *work) (ok bool) {
	defer func() {
		if cause := recover(); cause != nil {
			ok = false
			if cause != http.ErrAbortHandler {
				panic(cause)
			}
		}
	}()
	c.server.Handler.ServeHTTP(&w.w, &w.request)
	return true
}
