package proxy

import (
	"cmp"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"knarr/addons/gateway/route"
)

// maxClients is how many clients a limiter counts at once: some 5 MB.
const maxClients = 1 << 16

// A limiter bounds the requests of each client. Addresses of one IPv6 network of 64 bits
// are one client.
type limiter struct {
	route.Limit
	mu      sync.Mutex
	clients map[netip.Addr]*usage
	cleaned time.Time
}

// usage is what one client has used: next is when its bucket is full again.
type usage struct {
	next   time.Time
	active int
}

func newLimiter(l route.Limit) *limiter {
	return &limiter{Limit: l, clients: map[netip.Addr]*usage{}}
}

func (l *limiter) code() int { return cmp.Or(l.Code, http.StatusServiceUnavailable) }

func clientKey(a netip.Addr) netip.Addr {
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

// enter counts a request in, or refuses it.
func (l *limiter) enter(client netip.Addr) bool {
	if within(client, l.Exempt) {
		return true
	}
	client = clientKey(client)
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.clients[client]
	if u == nil {
		if len(l.clients) >= maxClients && !l.clean(now) {
			return false
		}
		u = &usage{}
		l.clients[client] = u
	}
	if l.Connections > 0 && u.active >= l.Connections {
		return false
	}
	if l.Rate > 0 {
		each := time.Duration(float64(time.Second) / l.Rate)
		if u.next.Before(now) {
			u.next = now
		}
		if u.next.Sub(now) > time.Duration(l.Burst)*each {
			return false
		}
		u.next = u.next.Add(each)
	}
	u.active++
	return true
}

// leave counts a request out. A nil limiter counts nothing.
func (l *limiter) leave(client netip.Addr) {
	if l == nil || within(client, l.Exempt) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.clients[clientKey(client)]; u != nil {
		u.active--
	}
}

// clean forgets clients whose buckets are full and who have no request, at most once a
// second, and reports whether there is room.
func (l *limiter) clean(now time.Time) bool {
	if now.Sub(l.cleaned) < time.Second {
		return false
	}
	l.cleaned = now
	for a, u := range l.clients {
		if u.active == 0 && u.next.Before(now) {
			delete(l.clients, a)
		}
	}
	return len(l.clients) < maxClients
}
