package http2

import (
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

// The functions below append frames to what is to be written; mu is held.

func (c *conn) appendHead(kind http2.FrameType, flags http2.Flags, id uint32, length int) {
	c.out = append(c.out, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	c.out = binary.BigEndian.AppendUint32(c.out, id)
}

func (c *conn) appendSettings() {
	settings := []http2.Setting{
		{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams},
		{ID: http2.SettingInitialWindowSize, Val: streamWindow},
		{ID: http2.SettingMaxHeaderListSize, Val: maxHeaderList},
		{ID: http2.SettingMaxFrameSize, Val: maxFrame},
	}
	c.appendHead(http2.FrameSettings, 0, 0, 6*len(settings))
	for _, s := range settings {
		c.out = binary.BigEndian.AppendUint16(c.out, uint16(s.ID))
		c.out = binary.BigEndian.AppendUint32(c.out, s.Val)
	}
	c.appendWindowUpdate(0, connWindow-65535)
}

func (c *conn) appendWindowUpdate(id uint32, n int64) {
	c.appendHead(http2.FrameWindowUpdate, 0, id, 4)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(n))
}

func (c *conn) appendReset(id uint32, code http2.ErrCode) {
	c.resets[c.nextOf%len(c.resets)] = id
	c.nextOf++
	c.appendHead(http2.FrameRSTStream, 0, id, 4)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(code))
}

func (c *conn) appendGoAway(last uint32, code http2.ErrCode) {
	c.appendHead(http2.FrameGoAway, 0, 0, 8)
	c.out = binary.BigEndian.AppendUint32(c.out, last)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(code))
}

// appendBlock appends a header block, in as many frames as it needs.
func (c *conn) appendBlock(id uint32, block []byte, end bool) {
	kind, flags, resize := http2.FrameHeaders, http2.Flags(0), 0
	if end {
		flags = http2.FlagHeadersEndStream
	}
	if c.resize {
		resize = 1
	}
	for {
		n := min(len(block), c.frameSize-resize)
		if n == len(block) {
			flags |= http2.FlagHeadersEndHeaders
		}
		c.appendHead(kind, flags, id, n+resize)
		if resize > 0 {
			c.out = append(c.out, 0x20)
			c.resize, resize = false, 0
		}
		c.out = append(c.out, block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return
		}
		kind, flags = http2.FrameContinuation, 0
	}
}

var errTooSlow = errors.New("the client does not take what it asked for")

// flush writes what was appended. While one goroutine writes, others only append, and what
// they appended meanwhile leaves together.
func (c *conn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing {
		return
	}
	c.writing = true
	if c.running > 1 {
		// Answers of other streams that are as good as ready leave by the same call.
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
	for len(c.out) > 0 && c.failed == nil {
		b := c.out
		c.out, c.spare = c.spare[:0], nil
		if now := time.Now(); c.writeBy.Sub(now) < writeTime/2 {
			c.writeBy = now.Add(writeTime)
			_ = c.nc.SetWriteDeadline(c.writeBy)
		}
		c.mu.Unlock()
		_, err := c.nc.Write(b)
		c.mu.Lock()
		if c.spare = b[:0]; cap(c.spare) > maxQueue {
			c.spare = nil
		}
		if err != nil && c.failed == nil {
			c.failed = err
			_ = c.nc.Close() // the reader ends
		}
		c.changed.Broadcast()
	}
	c.writing = false
	c.changed.Broadcast()
}

// control flushes answers to frames of control, and ends a connection whose client sends
// them without reading any.
func (c *conn) control() error {
	c.mu.Lock()
	many := len(c.out) > maxQueue
	writing := c.writing
	c.mu.Unlock()
	switch {
	case many:
		return errTooSlow
	case !writing:
		c.flush()
	}
	return nil
}

// handle does what a frame says.
func (c *conn) handle(frame http2.Frame) error {
	switch frame.(type) {
	case *http2.MetaHeadersFrame, *http2.DataFrame:
	default:
		if err := c.allowControl(); err != nil {
			return err
		}
	}
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		return c.headers(f)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.WindowUpdateFrame:
		return c.windowUpdate(f)
	case *http2.RSTStreamFrame:
		return c.reset(f)
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		c.mu.Lock()
		c.appendHead(http2.FramePing, http2.FlagPingAck, 0, 8)
		c.out = append(c.out, f.Data[:]...)
		c.mu.Unlock()
		return c.control()
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case *http2.GoAwayFrame:
		c.leave()
	}
	return nil
}

// allowControl bounds frames that cost the client less than they cost here: a few bytes
// may wake all streams. What it needs to take answers is granted by what was sent.
func (c *conn) allowControl() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.controlsAt) > controlTime {
		c.controls, c.controlsAt = 0, now
	}
	if c.controls++; c.controls > maxControls {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

func (c *conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	c.mu.Lock()
	grew := false
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingInitialWindowSize:
			change := int64(s.Val) - c.initialWindow
			grew = grew || change > 0
			c.initialWindow = int64(s.Val)
			for _, st := range c.streams {
				if st.window += change; st.window > 1<<31-1 {
					return http2.ConnectionError(http2.ErrCodeFlowControl)
				}
			}
		case http2.SettingMaxFrameSize:
			c.frameSize = int(min(s.Val, 64<<10))
		case http2.SettingHeaderTableSize:
			c.resize = true
		}
		return nil
	})
	if err == nil {
		c.appendHead(http2.FrameSettings, http2.FlagSettingsAck, 0, 0)
	}
	if grew {
		c.changed.Broadcast()
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.control()
}

func (c *conn) windowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.window += int64(f.Increment); c.window > 1<<31-1 {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		if c.window > 0 && c.window <= int64(f.Increment) {
			c.changed.Broadcast() // it was closed
		}
		return nil
	}
	st := c.streams[f.StreamID]
	switch {
	case st == nil && c.isIdle(f.StreamID):
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case st == nil:
		return nil
	}
	if st.window += int64(f.Increment); st.window > 1<<31-1 {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
	}
	if st.window > 0 && st.window <= int64(f.Increment) {
		c.changed.Broadcast()
	}
	return nil
}

// wasReset reports whether a stream was reset here a short while ago.
func (c *conn) wasReset(id uint32) bool { return slices.Contains(c.resets[:], id) }

// isIdle reports whether a stream was never opened.
func (c *conn) isIdle(id uint32) bool { return id > c.last || id%2 == 0 }

func (c *conn) reset(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isIdle(f.StreamID) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if st := c.streams[f.StreamID]; st != nil {
		st.abort(errReset)
		delete(c.streams, f.StreamID)
		if now := time.Now(); now.Sub(c.canceledAt) > cancelTime {
			c.canceled, c.canceledAt = 0, now
		}
		if c.canceled++; c.canceled > maxCanceled {
			return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
		}
	}
	return nil
}

var errReset = errors.New("the stream was reset")

// resetStream ends a stream because of what the client sent.
func (c *conn) resetStream(id uint32, code http2.ErrCode) error {
	c.mu.Lock()
	if st := c.streams[id]; st != nil {
		st.abort(errReset)
		delete(c.streams, id)
	}
	if id%2 == 1 && id > c.last {
		c.last = id
	}
	if c.refused++; c.refused > maxRefused {
		c.mu.Unlock()
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.appendReset(id, code)
	c.mu.Unlock()
	return c.control()
}
