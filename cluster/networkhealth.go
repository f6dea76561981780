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
	parts  map[string]part
	proven map[string]bool // those that have worked
}

// A part is a component that says what is wrong with it, since when it is asked.
type part struct {
	health interface{ Err() error }
	since  time.Time
}

// leaving are the components whose work stays in the kernel when they fail: what they once
// wrote goes on, and only what is new is missing. Upstream's node is ready then too.
var leaving = []string{"kube-proxy", "network-policy", "peers"}

// provenAfter is how long a component that failed has to run to count as well.
const provenAfter = 10 * time.Second

// watched is the component, and its failures are remembered.
func (h *networkHealth) watched(c component) component {
	return component{c.name, func(ctx context.Context) error {
		proven := run.AfterFunc("network health", provenAfter, func() { h.works(c.name) })
		defer proven.Stop()
		err := c.run(ctx)
		if err != nil && ctx.Err() == nil {
			h.set(c.name, err)
		}
		return err
	}}
}

// works notes that a component has run for long enough.
func (h *networkHealth) works(name string) {
	h.set(name, nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.parts[name].health == nil { // which knows better
		h.prove(name)
	}
}

// prove remembers that a component has worked; the lock is held.
func (h *networkHealth) prove(name string) {
	if h.proven == nil {
		h.proven = map[string]bool{}
	}
	h.proven[name] = true
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
func (h *networkHealth) follow(name string, health interface{ Err() error }) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.parts == nil {
		h.parts = map[string]part{}
	}
	h.parts[name] = part{health, time.Now()}
}

// err is why pods cannot be reached or attached at this moment; nil while all works, or has
// not been tried.
func (h *networkHealth) err() error { return h.wrong(false) }

// stale is what is not brought up to date at this moment, while what was there before works.
func (h *networkHealth) stale() error { return h.wrong(true) }

func (h *networkHealth) wrong(stale bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var wrong []string
	add := func(name string, err error) {
		if stale == (h.proven[name] && slices.Contains(leaving, name)) {
			wrong = append(wrong, name+": "+err.Error())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.failed)) {
		add(name, h.failed[name])
	}
	for _, name := range slices.Sorted(maps.Keys(h.parts)) {
		p := h.parts[name]
		if err := p.health.Err(); err != nil {
			add(name, err)
		} else if time.Since(p.since) >= provenAfter {
			h.prove(name)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.ReplaceAll(strings.Join(wrong, "; "), "\n", "; ")) // one line of a condition
}
