package cluster

import (
	"net/netip"
	"sync"
	"time"
)

// failedAttempts bound how often an address may give a wrong secret.
type failedAttempts struct {
	mu sync.Mutex
	by map[netip.Addr]attemptCount
}

type attemptCount struct {
	count int
	since time.Time
}

const (
	maxFailedAttempts = 10
	attemptWindow     = time.Minute
	maxAddresses      = 4096
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

// exceeded reports whether an address has had its tries for now.
func (s *failedAttempts) exceeded(a netip.Addr, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.by[a]
	return ok && k.count >= maxFailedAttempts && now.Sub(k.since) < attemptWindow
}

// add notes a wrong secret.
func (s *failedAttempts) add(a netip.Addr, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[netip.Addr]attemptCount{}
	}
	k := s.by[a]
	if now.Sub(k.since) >= attemptWindow {
		k = attemptCount{since: now}
	}
	k.count++
	if len(s.by) >= maxAddresses {
		s.forget(now)
	}
	s.by[a] = k
}

// forget drops what is over, or, when nothing is, anything.
func (s *failedAttempts) forget(now time.Time) {
	for a, k := range s.by {
		if now.Sub(k.since) >= attemptWindow {
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
