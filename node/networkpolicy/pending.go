package networkpolicy

import (
	"net/netip"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// work is what must be looked at again.
type work struct {
	pods, policies map[cache.ObjectName]bool
	namespaces     map[string]bool
	attached       []attachment
	all            bool // what the kernel has is gone
}

// An attachment is an address that the pod network has given to a new pod.
type attachment struct {
	uid  types.UID
	addr netip.Addr
}

// pending collects work. While one batch is written the next gathers, so that a
// burst costs few transactions and a single change waits for nothing.
type pending struct {
	mu sync.Mutex
	work
	c chan struct{}
}

func newPending() *pending { return &pending{work: newWork(), c: make(chan struct{}, 1)} }

func newWork() work {
	return work{pods: map[cache.ObjectName]bool{}, policies: map[cache.ObjectName]bool{}, namespaces: map[string]bool{}}
}

func (p *pending) add(note func(*work)) {
	p.mu.Lock()
	note(&p.work)
	p.mu.Unlock()
	select {
	case p.c <- struct{}{}:
	default:
	}
}

func (p *pending) take() work {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.work
	p.work = newWork()
	return w
}
