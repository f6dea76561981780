package spdystream

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"time"
)

// CloseChan is closed when the connection has ended.
func (c *Connection) CloseChan() <-chan bool { return c.closed }

// Close says that there will be no new streams, and ends the connection once those that
// there are have ended, or the time that SetCloseTimeout gave has passed.
func (c *Connection) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.goingAway || c.ended {
		return nil
	}
	c.goingAway = true
	c.reply(appendControl(nil, goAway, 0, nil, c.lastID(), goAwayOK))
	if c.closeTimeout > 0 {
		c.leaving = time.AfterFunc(c.closeTimeout, c.end)
	}
	c.leave()
	return nil
}

// CloseWait closes the connection, and returns when it has ended.
func (c *Connection) CloseWait() error {
	if err := c.Close(); err != nil {
		return err
	}
	return c.Wait(0)
}

// Wait returns when the connection has ended, or with ErrTimeout; 0 is no timeout.
func (c *Connection) Wait(timeout time.Duration) error {
	return await(c.closed, timeout)
}

func await[T any](done <-chan T, timeout time.Duration) error {
	var late <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-done:
		return nil
	case <-late:
		return ErrTimeout
	}
}

// SetCloseTimeout sets how long Close waits for streams; 0 is without end.
func (c *Connection) SetCloseTimeout(timeout time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeTimeout = timeout
}

// SetIdleTimeout ends the connection when there was no frame for so long; 0 is never.
func (c *Connection) SetIdleTimeout(timeout time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idleTimeout = timeout
	if c.idle != nil {
		c.idle.Stop()
		c.idle = nil
	}
	if timeout > 0 && !c.ended {
		c.touch()
		c.idle = time.AfterFunc(timeout, c.expire)
	}
}

// touch is called when there was a frame.
func (c *Connection) touch() { c.active.Store(int64(time.Since(c.since))) }

// expire ends a connection that is idle.
func (c *Connection) expire() {
	c.mu.Lock()
	if c.ended || c.idle == nil {
		c.mu.Unlock()
		return
	}
	if left := c.idleTimeout - time.Since(c.since) + time.Duration(c.active.Load()); left > 0 {
		c.idle.Reset(left)
		c.mu.Unlock()
		return
	}
	for _, s := range slices.Collect(maps.Values(c.streams)) {
		s.drop(statusCancel)
	}
	c.mu.Unlock()
	_ = c.Close()
}

// leave ends a connection that is closed and has no stream any longer once all is
// written; not for ever, as the other end may not read.
func (c *Connection) leave() {
	if !c.goingAway || c.open > 0 || c.ended {
		return
	}
	if c.leaving != nil {
		c.leaving.Stop()
	}
	c.leaving = time.AfterFunc(flushTime, c.end)
	c.reply(nil)
}

// end ends everything that waits for the connection.
func (c *Connection) end() {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return
	}
	c.ended = true
	for _, timer := range []*time.Timer{c.idle, c.leaving} {
		if timer != nil {
			timer.Stop()
		}
	}
	for id, s := range c.streams {
		s.ended() // which leaves it there if something is unread
		if !c.server {
			delete(c.streams, id)
		}
	}
	if len(c.streams) > 0 {
		time.AfterFunc(keepTime, c.forget)
	}
	c.arrived, c.replies = nil, nil
	c.room.Broadcast()
	c.mu.Unlock()
	_ = c.conn.Close()
	close(c.closed)
}

// forget drops what nobody has read since the connection ended.
func (c *Connection) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range slices.Collect(maps.Values(c.streams)) {
		s.drop(0)
	}
}

// writable says why nothing can be written any longer.
func (c *Connection) writable() error {
	if c.ended {
		return io.EOF
	}
	return c.writeErr
}

// reply has a frame written as soon as possible, without waiting for it; none if b is
// empty, but then what follows what is written happens too.
func (c *Connection) reply(b []byte) {
	if c.ended {
		return
	}
	c.replies = append(c.replies, b...)
	if !c.flushing {
		c.flushing = true
		go c.flush()
	}
}

// flush writes what is to be written as soon as possible, and ends the connection after
// that if it is time.
func (c *Connection) flush() {
	for {
		if err := c.write(func(b []byte) []byte { return b }); err != nil {
			c.mu.Lock()
			c.replies = nil
			c.room.Broadcast()
			c.mu.Unlock()
		}
		c.mu.Lock()
		if len(c.replies) > 0 {
			c.mu.Unlock()
			continue
		}
		c.flushing = false
		over := c.goingAway && c.open == 0
		c.mu.Unlock()
		if over {
			c.end()
		}
		return
	}
}

// write writes the frame that add appends.
func (c *Connection) write(add func(b []byte) []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.put(add)
}

// put is write where writing is locked.
func (c *Connection) put(add func(b []byte) []byte) error {
	buffer := pieces.Get().(*[]byte)
	defer pieces.Put(buffer)
	c.mu.Lock()
	err := c.writable()
	b := append((*buffer)[:0], c.replies...)
	c.replies = nil
	c.room.Broadcast()
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if b = add(b); len(b) == 0 {
		return nil
	}
	if _, err := c.conn.Write(b); err != nil {
		// What the other end wrote before it left is read yet: reading ends by itself.
		c.mu.Lock()
		c.writeErr = err
		c.mu.Unlock()
		return err
	}
	c.touch()
	return nil
}

// block is a block of headers; writing is locked.
func (c *Connection) block(h http.Header) []byte {
	b := appendHeaders(nil, h, !c.deflated)
	c.deflated = true
	return b
}
