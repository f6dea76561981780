// Package fscall makes calls to file systems that may never answer, such as a
// network file system whose server is gone. A system call that hangs cannot be
// called off: it is left to a goroutine of its own, at most one for each path,
// and its caller goes on. It reads and writes nothing itself.
package fscall

import (
	"context"
	"sync"
	"time"

	"knarr/internal/run"
)

// An Error says that a path does not answer.
type Error struct {
	Path  string
	Since time.Time
}

// The text stays the same while it lasts, for events repeat it.
func (e *Error) Error() string { return "the file system of " + e.Path + " does not answer" }

// Calls are the calls that have not returned. The zero value is ready for use.
type Calls struct {
	mu   sync.Mutex
	busy map[string]*call
}

type call struct {
	began time.Time
	ended chan struct{}
	err   error
	// abandoned says that its caller has gone on.
	abandoned bool
}

// Do calls f, which asks the file system at path, and waits for it until ctx
// ends, whose error it returns then, or most has passed if most is not zero,
// which is an *Error. What f writes to may only be read if Do returns what f
// returned. Calls to one path take turns; while one of them hangs, the others
// fail at once.
func (c *Calls) Do(ctx context.Context, path string, most time.Duration, f func() error) error {
	around := ctx
	if err := around.Err(); err != nil {
		return err
	}
	late := func(since time.Time) error {
		if err := around.Err(); err != nil {
			return err
		}
		return &Error{path, since}
	}
	if most > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, most)
		defer cancel()
	}
	now := &call{began: time.Now(), ended: make(chan struct{})}
	for {
		c.mu.Lock()
		before := c.busy[path]
		if before == nil {
			if c.busy == nil {
				c.busy = map[string]*call{}
			}
			c.busy[path] = now
			c.mu.Unlock()
			break
		}
		abandoned := before.abandoned
		c.mu.Unlock()
		if abandoned {
			return &Error{path, before.began}
		}
		select {
		case <-before.ended:
		case <-ctx.Done():
			return late(before.began)
		}
	}
	run.Go("file system call", func() {
		defer func() {
			c.mu.Lock()
			delete(c.busy, path)
			c.mu.Unlock()
			close(now.ended)
		}()
		now.err = run.Catch("file system call", f)
	})
	select {
	case <-now.ended:
		return now.err
	case <-ctx.Done():
		c.mu.Lock()
		now.abandoned = true
		c.mu.Unlock()
		return late(now.began)
	}
}

// Hanging are the paths whose calls were given up and have not returned.
func (c *Calls) Hanging() (paths []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, b := range c.busy {
		if b.abandoned {
			paths = append(paths, p)
		}
	}
	return paths
}
