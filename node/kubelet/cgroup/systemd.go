package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

const (
	// busTime bounds a call over D-Bus.
	busTime = 10 * time.Second
	// jobTime is how long systemd may take to start or stop a unit: libcontainer's.
	jobTime = 30 * time.Second
)

// systemd makes, limits and ends slices over D-Bus.
type systemd struct {
	ctx     context.Context
	address string
	jobTime time.Duration

	mu      sync.Mutex
	conn    *dbus.Conn
	version atomic.Int64
}

// UseSystemd leaves slices to systemd, which is asked over D-Bus until ctx ends. Address is
// that of the bus; "": the system's, or systemd's own socket where there is no bus. Groups
// that are no slices stay directories. Said again, as when the runtime has started anew, it
// keeps the connection.
func (t *Tree) UseSystemd(ctx context.Context, address string) {
	if s := t.systemd.Load(); s != nil && s.ctx == ctx && s.address == address {
		return
	}
	t.systemd.Store(&systemd{ctx: ctx, address: address, jobTime: jobTime})
}

// UseDirectories makes all groups directories, which is where a Tree begins.
func (t *Tree) UseDirectories() { t.systemd.Store(nil) }

// EndSlices ends everything in the slice that systemd has for a group, and the slice; none
// is no error.
func (t *Tree) EndSlices(ctx context.Context, name string) error {
	dir := SlicePath(name)
	if !t.anywhere(dir) {
		return nil
	}
	t.UseSystemd(ctx, "")
	return t.end(ctx, dir)
}

// end kills what is in a group until nothing is, and removes it.
func (t *Tree) end(ctx context.Context, path string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for t.populated(path) {
		if err := t.Kill(path); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("end the processes in %s: %w", path, ctx.Err())
		}
	}
	return t.Remove(path)
}

// unitsOf is who makes the group of a path; nil: this process.
func (t *Tree) unitsOf(path string) *systemd {
	if !IsSlice(path) {
		return nil
	}
	return t.systemd.Load()
}

// ensure makes the slice of a path and sets its limits.
func (s *systemd) ensure(dir string, l Limits, v2 bool, exists func() bool) error {
	unit := path.Base(dir)
	err := s.job("start", unit, func(ctx context.Context, c *dbus.Conn, done chan<- string) error {
		_, err := c.StartTransientUnitContext(ctx, unit, "replace", sliceProperties(dir), done)
		return err
	})
	switch {
	case isError(err, "UnitExists"):
		// It runs, or it is known without running: then somebody stopped it.
		if !exists() {
			err = s.job("start", unit, func(ctx context.Context, c *dbus.Conn, done chan<- string) error {
				_, err := c.StartUnitContext(ctx, unit, "replace", done)
				return err
			})
		} else {
			err = nil
		}
	case err != nil:
		s.resetFailed(unit)
	}
	if err != nil {
		return err
	}
	return s.do(func(ctx context.Context, c *dbus.Conn) error {
		all := limitProperties(l, v2, int(s.version.Load()))
		if len(all) == 0 {
			return nil
		}
		if err := c.SetUnitPropertiesContext(ctx, unit, true, all...); err != nil {
			return fmt.Errorf("set properties of systemd unit %s: %w", unit, err)
		}
		return nil
	})
}

// stop ends the slice of a path and what is in it. One that systemd does not know is no
// error.
func (s *systemd) stop(dir string) error {
	unit := path.Base(dir)
	err := s.job("stop", unit, func(ctx context.Context, c *dbus.Conn, done chan<- string) error {
		_, err := c.StopUnitContext(ctx, unit, "replace", done)
		return err
	})
	if isError(err, "NoSuchUnit") {
		return nil
	}
	s.resetFailed(unit)
	return err
}

// resetFailed lets systemd forget a unit that failed: its name is free then.
func (s *systemd) resetFailed(unit string) {
	_ = s.do(func(ctx context.Context, c *dbus.Conn) error { return c.ResetFailedUnitContext(ctx, unit) })
}

// job has systemd start or stop a unit, and waits for that.
func (s *systemd) job(verb, unit string, begin func(context.Context, *dbus.Conn, chan<- string) error) error {
	done := make(chan string, 1) // of one job: a call that failed has none
	if err := s.do(func(ctx context.Context, c *dbus.Conn) error { return begin(ctx, c, done) }); err != nil {
		return fmt.Errorf("%s systemd unit %s: %w", verb, unit, err)
	}
	timer := time.NewTimer(s.jobTime)
	defer timer.Stop()
	select {
	case result := <-done:
		return jobError(verb, unit, result)
	case <-timer.C:
		s.hangUp(nil) // the bus may have lost the answer
		return fmt.Errorf("%s systemd unit %s: no answer after %v", verb, unit, s.jobTime)
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// do makes a call, on a new connection if the one there was has ended.
func (s *systemd) do(call func(context.Context, *dbus.Conn) error) error {
	for again := true; ; again = false {
		c, err := s.connect()
		if err != nil {
			return fmt.Errorf("connect to systemd over D-Bus: %w", err)
		}
		ctx, cancel := context.WithTimeout(s.ctx, busTime)
		err = call(ctx, c)
		cancel()
		gone := err != nil && ended(err)
		if gone || errors.Is(err, context.DeadlineExceeded) {
			s.hangUp(c)
		}
		if !gone || !again || s.ctx.Err() != nil {
			return err
		}
	}
}

// ended says that an error is that of a connection.
func ended(err error) bool {
	var broken net.Error
	return errors.Is(err, godbus.ErrClosed) || errors.Is(err, io.EOF) || errors.As(err, &broken) && !errors.Is(err, context.DeadlineExceeded)
}

func (s *systemd) connect() (*dbus.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.conn.Connected() {
		return s.conn, nil
	}
	conn, err := s.dial()
	if err != nil {
		return nil, err
	}
	version, err := conn.GetManagerProperty("Version")
	if err != nil {
		conn.Close()
		return nil, err
	}
	s.conn = conn
	s.version.Store(int64(versionOf(version)))
	return conn, nil
}

func (s *systemd) dial() (*dbus.Conn, error) {
	if s.address == "" {
		return dbus.NewWithContext(s.ctx)
	}
	return dbus.NewConnection(func() (*godbus.Conn, error) { return godbus.Connect(s.address, godbus.WithContext(s.ctx)) })
}

// hangUp ends a connection, if it is still the one; nil: whichever is.
func (s *systemd) hangUp(c *dbus.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && (c == nil || c == s.conn) {
		s.conn.Close()
		s.conn = nil
	}
}
