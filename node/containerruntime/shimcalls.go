package containerruntime

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// callMissed is how long a call to the shim may be under way, with none that succeeds, before
// the node is not ready. The kubelet gives up a container's start after twice this time.
const callMissed = 2 * time.Minute

// A shimCall is one that has the shim start or end something.
type shimCall struct {
	method, id string
	began      time.Time
	// own says that the container can hold the call up: it can stop a process that is added
	// to it on its way in.
	own bool
}

// shimCalls are those under way. A shim can answer questions and still start nothing, such as
// when control groups cannot be made: of that, calls which do not return are the only sign.
type shimCalls struct {
	mu        sync.Mutex
	under     map[*shimCall]struct{}
	succeeded time.Time // when one did last
	gaveUp    time.Time // when the first began, since then, whose caller did not wait for its end
}

// follow makes a call that is known while it is under way.
func follow[Res any](ctx context.Context, s *shimCalls, c shimCall, call func() (*Res, error)) (*Res, error) {
	s.begin(&c)
	res, err := call()
	s.end(&c, err == nil, ctx.Err() != nil)
	return res, err
}

func (s *shimCalls) begin(c *shimCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.under == nil {
		s.under = map[*shimCall]struct{}{}
	}
	c.began = time.Now()
	s.under[c] = struct{}{}
}

func (s *shimCalls) end(c *shimCall, succeeded, gaveUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.under, c)
	switch {
	case succeeded:
		s.succeeded, s.gaveUp = time.Now(), time.Time{}
	case gaveUp && !c.own && s.gaveUp.IsZero() && c.began.After(s.succeeded):
		s.gaveUp = c.began
	}
}

// renew forgets what was of a shim that has ended.
func (s *shimCalls) renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.succeeded, s.gaveUp = time.Now(), time.Time{}
}

// hung says since when the shim has ended no call; nil where one succeeded, or nobody has
// waited for long. Calls of one container alone are no sign: a pod whose containers share
// their processes can stop those of the next one, and its containers start one by one.
func (s *shimCalls) hung(now time.Time) *absence {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest *shimCall
	containers := map[string]bool{}
	for c := range s.under {
		if c.own || !c.began.After(s.succeeded) || now.Sub(c.began) < shimMissed {
			continue
		}
		containers[c.id] = true
		if oldest == nil || c.began.Before(oldest.began) {
			oldest = c
		}
	}
	if len(containers) < 2 {
		return nil
	}
	since := oldest.began
	if !s.gaveUp.IsZero() && s.gaveUp.Before(since) {
		since = s.gaveUp
	}
	if now.Sub(since) < callMissed {
		return nil
	}
	return &absence{since: since, err: fmt.Errorf("the shim answers and ends no call: %s of container %s is under way since %s, one of %d containers that wait",
		oldest.method, oldest.id, oldest.began.UTC().Format(time.RFC3339), len(containers))}
}
