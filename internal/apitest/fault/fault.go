// Package fault stands between a process under test and the API server: it ends
// the process at a chosen write, holds its watches back, has them expire, and
// spoils what discovery says. It reads and writes what passes through it, and
// notes every call.
package fault

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// A Call is one request that was answered.
type Call struct {
	Account, Method, Path string
	Status                int
	Watch                 bool
}

// Write says whether a call may have changed something that lasts: events, leases
// and reviews are not of a controller's work.
func (c Call) Write() bool {
	return c.Method != http.MethodGet && !slices.Contains([]string{"events", "leases", "reviews"}, c.Resource())
}

// Resource is what the call's path names: pods, pods/status.
func (c Call) Resource() string {
	parts := strings.Split(strings.Trim(c.Path, "/"), "/")
	if len(parts) < 2 {
		return "discovery"
	}
	if parts = parts[2:]; strings.HasPrefix(c.Path, "/apis/") && len(parts) > 0 {
		parts = parts[1:]
	}
	if len(parts) > 2 && parts[0] == "namespaces" && !slices.Contains([]string{"status", "finalize"}, parts[2]) {
		parts = parts[2:]
	}
	switch {
	case len(parts) == 0:
		return "discovery"
	case strings.HasSuffix(parts[0], "reviews"):
		return "reviews"
	case len(parts) > 2:
		return parts[0] + "/" + parts[2]
	}
	return parts[0]
}

// A Process is one run of what is tested: all its connections end together.
type Process struct {
	// Account is the one whose writes count; "" is all.
	Account string
	// StopAt is the write, from 1 on, at which the process ends; 0 is never.
	StopAt int
	// Unsent has the last write not reach the server. Otherwise it does, and only
	// the answer is lost.
	Unsent bool
	// Stop ends the process.
	Stop func()
	// PauseAt is the write, from 1 on, that waits until Resume.
	PauseAt int
	// Discovery changes what documents of discovery say.
	Discovery func(*http.Request, *http.Response) *http.Response
	// Watches are held back together.
	Watches *Watches

	mu     sync.Mutex
	writes int
	all    int
	ended  bool
	paused chan struct{}
	calls  []Call
}

// errEnded is what a process sees of the server after its end.
var errEnded = errors.New("connection reset by peer: the process has ended")

// Wrap is for the connections of an account.
func (p *Process) Wrap(account string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) { return p.roundTrip(account, next, req) })
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func (p *Process) roundTrip(account string, next http.RoundTripper, req *http.Request) (*http.Response, error) {
	call := Call{Account: account, Method: req.Method, Path: req.URL.Path, Watch: req.URL.Query().Get("watch") != ""}
	last, wait := p.admit(call)
	if p.Ended() && !last {
		return nil, errEnded
	}
	if wait != nil {
		<-wait
	}
	if last && p.Unsent {
		p.Stop()
		return nil, errEnded
	}
	if call.Watch && p.Watches.expired(req) {
		return gone(req), nil
	}
	if call.Write() { // what is on its way arrives, also when its sender has ended
		req = req.WithContext(context.WithoutCancel(req.Context()))
	}
	resp, err := next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	call.Status = resp.StatusCode
	p.mu.Lock()
	p.calls = append(p.calls, call)
	p.mu.Unlock()
	switch {
	case last:
		resp.Body.Close()
		p.Stop()
		return nil, errEnded
	case call.Watch && resp.StatusCode == http.StatusOK:
		resp.Body = p.Watches.hold(call.Resource(), req.URL.Path, resp.Body)
	case p.Discovery != nil && call.Resource() == "discovery":
		resp = p.Discovery(req, resp)
	}
	return resp, nil
}

// admit counts a call; last says that the process ends with it, and wait, if
// not nil, is closed when it may go on.
func (p *Process) admit(call Call) (last bool, wait chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || !call.Write() {
		return false, nil
	}
	p.all++
	if p.Account != "" && p.Account != call.Account {
		return false, nil
	}
	p.writes++
	if p.writes == p.StopAt {
		p.ended = true
		return true, nil
	}
	if p.writes == p.PauseAt {
		p.paused = make(chan struct{})
		return false, p.paused
	}
	return false, nil
}

// Ended says that the process came to the write it ends at.
func (p *Process) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// Paused says that a write waits for Resume.
func (p *Process) Paused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused != nil
}

// Resume lets the write that waits go on.
func (p *Process) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
	}
}

// Writes is how many writes of the account have begun.
func (p *Process) Writes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writes
}

// Activity is how many writes of any account have begun.
func (p *Process) Activity() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

// Calls are those answered so far, in order.
func (p *Process) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}
