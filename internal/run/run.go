// Package run starts and stops the parts of a process. It reads and writes
// nothing of its own.
package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// A Component runs until its context is done and leaves no goroutine behind.
type Component interface {
	Name() string
	Run(ctx context.Context) error
}

// Func makes a Component of a name and a function.
func Func(name string, run func(context.Context) error) Component { return fn{name, run} }

type fn struct {
	name string
	run  func(context.Context) error
}

func (f fn) Name() string                  { return f.name }
func (f fn) Run(ctx context.Context) error { return f.run(ctx) }

// All runs every component; the first to fail stops the others. It returns
// once all have returned: nil when ctx ended, else the first failure with the
// component's name before it.
func All(ctx context.Context, cs ...Component) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, c := range cs {
		wg.Go(func() {
			if err := c.Run(ctx); err != nil {
				cancel(fmt.Errorf("%s: %w", c.Name(), err))
			}
		})
	}
	wg.Wait()
	err := context.Cause(ctx)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}
