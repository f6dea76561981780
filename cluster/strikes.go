package cluster

import (
	"net/netip"
	"sync"
	"time"
)

// strikes bound how often an address may give a wrong secret.
type strikes struct {
	mu sync.Mutex
	by map[netip.Addr]strike
}

type strike struct {
	count int
	since time.Time
}

const (
	maxStrikes   = 10
	strikeTime   = time.Minute
	maxAddresses = 4096
)

// source is the address that a request counts for: an IPv6 host has its network.
func source(remote string) netip.Addr {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	a := ap.Addr().Unmap().WithZone("")
	if a.Is6() {
		p, _ := a.Prefix(64)
		return p.Addr()
	}
	return a
}

// out says whether an address has had its tries for now.
func (s *strikes) out(a netip.Addr, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.by[a]
	return ok && k.count >= maxStrikes && now.Sub(k.since) < strikeTime
}

// add notes a wrong secret.
func (s *strikes) add(a netip.Addr, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[netip.Addr]strike{}
	}
	k := s.by[a]
	if now.Sub(k.since) >= strikeTime {
		k = strike{since: now}
	}
	k.count++
	if len(s.by) >= maxAddresses {
		s.forget(now)
	}
	s.by[a] = k
}

// forget drops what is over, or, when nothing is, anything.
func (s *strikes) forget(now time.Time) {
	for a, k := range s.by {
		if now.Sub(k.since) >= strikeTime {
			delete(s.by, a)
		}
	}
	for a := range s.by {
		if len(s.by) < maxAddresses {
			return
		}
		delete(s.by, a)
	}
}
