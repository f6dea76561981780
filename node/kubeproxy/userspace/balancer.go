package userspace

import (
	"net/netip"
	"sync"
	"time"

	"knarr/node/kubeproxy"
)

// maxClients bounds the clients that a balancer remembers, as the nftables mode does.
const maxClients = 65_536

// A balancer gives the endpoints of a pool in turn.
type balancer struct {
	mu       sync.Mutex
	pool     kubeproxy.Pool
	next     int
	affinity map[netip.Addr]*visit
	// newest and oldest are the ends of the list of visits by their last time.
	newest, oldest *visit
}

// A visit is what is remembered of a client.
type visit struct {
	client       netip.Addr
	at           netip.AddrPort
	last         time.Time
	newer, older *visit
}

func newBalancer(p kubeproxy.Pool) *balancer {
	return &balancer{pool: p, affinity: map[netip.Addr]*visit{}}
}

func (b *balancer) set(p kubeproxy.Pool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pool = p
}

// pick is the endpoint for a client; again says that one did not answer, so that the
// next one is tried and remembered in its place.
func (b *balancer) pick(client netip.Addr, again bool, now time.Time) (netip.AddrPort, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	eps := b.pool.Endpoints
	if len(eps) == 0 {
		return netip.AddrPort{}, false
	}
	if b.pool.Affinity == 0 {
		b.next = (b.next + 1) % len(eps)
		return eps[b.next], true
	}
	b.expire(now)
	v := b.affinity[client]
	if v == nil || again || !b.living(v.at) {
		b.next = (b.next + 1) % len(eps)
		if v == nil {
			v = &visit{client: client}
		} else {
			b.unlink(v)
		}
		v.at = eps[b.next]
	} else {
		b.unlink(v)
	}
	v.last = now
	b.link(v)
	return v.at, true
}

// lives reports whether an endpoint still serves the flows that it has.
func (b *balancer) lives(ep netip.AddrPort) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.living(ep) {
		return true
	}
	for _, e := range b.pool.Ending {
		if e == ep {
			return true
		}
	}
	return false
}

func (b *balancer) living(ep netip.AddrPort) bool {
	for _, e := range b.pool.Endpoints {
		if e == ep {
			return true
		}
	}
	return false
}

func (b *balancer) expire(now time.Time) {
	for v := b.oldest; v != nil && (len(b.affinity) > maxClients || now.Sub(v.last) > time.Duration(b.pool.Affinity)*time.Second); v = b.oldest {
		b.unlink(v)
	}
}

func (b *balancer) link(v *visit) {
	b.affinity[v.client] = v
	v.older, v.newer = b.newest, nil
	if b.newest != nil {
		b.newest.newer = v
	} else {
		b.oldest = v
	}
	b.newest = v
}

func (b *balancer) unlink(v *visit) {
	delete(b.affinity, v.client)
	if v.newer != nil {
		v.newer.older = v.older
	} else {
		b.newest = v.older
	}
	if v.older != nil {
		v.older.newer = v.newer
	} else {
		b.oldest = v.newer
	}
}
