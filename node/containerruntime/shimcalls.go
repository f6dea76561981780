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
	// sandbox says that it is for a pod's sandbox. Those alone are a sign when they hang: they
	// have namespaces of their own and no volumes. The pod can hold up any other: its containers
	// that share processes can stop the next one on its way in, a volume's server can stop to
	// answer, and what a resize takes back from a container can take the kernel long.
	sandbox bool
}

// shimCalls are those under way. A shim can answer questions and still start nothing, such as
// when control groups cannot be made: of that, calls which do not return are the only sign.
type shimCalls struct {
	mu        sync.Mutex
	under     map[*shimCall]struct{}
	succeeded time.Time // when one did last
	gaveUp    time.Time // when the first began, since then, whose caller did not wait for its end
}

// follow makes a call that is known while it is under way. The error is the call's.
func (s *shimCalls) follow(ctx context.Context, c shimCall, call func() error) error {
	s.begin(&c)
	err := call()
	s.end(&c, err == nil, ctx.Err() != nil)
	return err
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
	case gaveUp && c.sandbox && s.gaveUp.IsZero() && c.began.After(s.succeeded):
		s.gaveUp = c.began
	}
}

// renew forgets what was of a shim that has ended.
func (s *shimCalls) renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.succeeded, s.gaveUp = time.Now(), time.Time{}
}

// hung says since when the shim has ended no call; nil where one succeeded, be it for whatever
// container, or where fewer than two sandboxes have waited for long.
func (s *shimCalls) hung(now time.Time) *absence {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest *shimCall
	sandboxes := map[string]bool{}
	for c := range s.under {
		if !c.sandbox || !c.began.After(s.succeeded) || now.Sub(c.began) < shimMissed {
			continue
		}
		sandboxes[c.id] = true
		if oldest == nil || c.began.Before(oldest.began) {
			oldest = c
		}
	}
	if len(sandboxes) < 2 {
		return nil
	}
	since := oldest.began
	if !s.gaveUp.IsZero() && s.gaveUp.Before(since) {
		since = s.gaveUp
	}
	if now.Sub(since) < callMissed {
		return nil
	}
	return &absence{since: since, err: fmt.Errorf("the shim answers and ends no call: %s of sandbox %s is under way since %s, one of %d sandboxes that wait",
		oldest.method, oldest.id, oldest.began.UTC().Format(time.RFC3339), len(sandboxes))}
}
