package streaming

import (
	"fmt"
	"sync"
)

// A bound is how many of something one container or sandbox, and all of a node may have. The
// node's is for everybody, and so one that those which want all of it must not reach: the
// last kept places are for who has less than few.
type bound struct {
	one, all  int
	kept, few int
	// of is what is counted, for who is refused one more.
	of string
}

var (
	// waiting are requests that no client has come for yet.
	waiting = bound{100, 1000, 250, 4, "requests for streams that no client has come for"}
	// sessions are clients of exec and attach: each has a connection, a dozen goroutines and
	// pipes to the container, and a command holds them until it ends.
	sessions = bound{64, 1000, 250, 4, "exec and attach sessions"}
	// orphans are commands that go on without their clients.
	orphans = bound{256, 2000, 500, 4, "commands whose clients have left"}
	// forwarders are clients of port-forward, which have connections forwarded.
	forwarders = bound{64, 1000, 250, 4, "port-forward sessions"}
	// forwarded are connections into sandboxes.
	forwarded = bound{256, 2000, 500, 16, "forwarded connections"}
)

// pairsWaiting is how many forwarded connections of one client may lack one of their streams.
const pairsWaiting = 64

// places counts what containers, or sandboxes, have of something.
type places struct {
	mu  sync.Mutex
	all int
	of  map[string]int
}

// take counts one more of one container or sandbox, until back is called. Its error names the
// bound that is reached.
func (p *places) take(b bound, one string) (back func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	has := p.of[one]
	switch {
	case has >= b.one:
		return nil, fmt.Errorf("%s has %d %s, which is as many as it may have", one, b.one, b.of)
	case p.all >= b.all-b.kept && has >= b.few:
		return nil, fmt.Errorf("this node has %d %s, and more are for who has less than %d, which %s has not", p.all, b.of, b.few, one)
	case p.all >= b.all:
		return nil, fmt.Errorf("this node has %d %s, which is as many as it may have", b.all, b.of)
	}
	if p.of == nil {
		p.of = map[string]int{}
	}
	p.all++
	p.of[one]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		if p.of[one]--; p.of[one] == 0 {
			delete(p.of, one)
		}
	}), nil
}
