package cluster

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"knarr/internal/run"
)

// networkHealth is why pods of this node cannot be reached or attached, which the
// Node then says of itself: what failed last, by name, and what components say
// themselves.
type networkHealth struct {
	mu     sync.Mutex
	failed map[string]error
	parts  map[string]interface{ Err() error }
}

// provenAfter is how long a component that failed has to run to count as well.
const provenAfter = 10 * time.Second

// watched is the component, and its failures are remembered.
func (h *networkHealth) watched(c component) component {
	return component{c.name, func(ctx context.Context) error {
		proven := run.AfterFunc("network health", provenAfter, func() { h.set(c.name, nil) })
		defer proven.Stop()
		err := c.run(ctx)
		if err != nil && ctx.Err() == nil {
			h.set(c.name, err)
		}
		return err
	}}
}

// set notes that something fails, or with nil that it works. It reports whether
// that is news.
func (h *networkHealth) set(name string, err error) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.failed[name]
	if h.failed == nil {
		h.failed = map[string]error{}
	}
	if err == nil {
		delete(h.failed, name)
		return was != nil
	}
	h.failed[name] = err
	return was == nil || was.Error() != err.Error()
}

// follow has a component's own errors count.
func (h *networkHealth) follow(name string, part interface{ Err() error }) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.parts == nil {
		h.parts = map[string]interface{ Err() error }{}
	}
	h.parts[name] = part
}

// err is what is wrong at this moment; nil while all works, or has not been tried.
func (h *networkHealth) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(h.failed)) {
		wrong = append(wrong, name+": "+h.failed[name].Error())
	}
	for _, name := range slices.Sorted(maps.Keys(h.parts)) {
		if err := h.parts[name].Err(); err != nil {
			wrong = append(wrong, name+": "+err.Error())
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.ReplaceAll(strings.Join(wrong, "; "), "\n", "; ")) // one line of a condition
}
