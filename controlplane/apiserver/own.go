package apiserver

import (
	"net"
	"net/netip"
	"slices"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"

	"knarr/controlplane/apiserver/watchcache"
)

// listening are the addresses that this server listens on.
type listening struct {
	mu  sync.Mutex
	all []netip.AddrPort
}

func (l *listening) add(a net.Addr) {
	if t, ok := a.(*net.TCPAddr); ok {
		l.mu.Lock()
		l.all = append(l.all, t.AddrPort())
		l.mu.Unlock()
	}
}

func (l *listening) remove(a net.Addr) {
	if t, ok := a.(*net.TCPAddr); ok {
		l.mu.Lock()
		if i := slices.Index(l.all, t.AddrPort()); i >= 0 {
			l.all = slices.Delete(l.all, i, i+1)
		}
		l.mu.Unlock()
	}
}

// leadsTo reports whether an address leads to one of them.
func (l *listening) leadsTo(to netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.all {
		if a.Port() != to.Port() {
			continue
		}
		if at := a.Addr().Unmap(); at == to.Addr() || at.IsUnspecified() && local(to.Addr()) || to.Addr().IsUnspecified() {
			return true
		}
	}
	return false
}

// local reports whether an address is one of this host. One that cannot be told is.
func local(a netip.Addr) bool {
	if a.IsLoopback() || a.IsUnspecified() {
		return true
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	return slices.ContainsFunc(all, func(i net.Addr) bool {
		p, ok := i.(*net.IPNet)
		if !ok {
			return false
		}
		own, ok := netip.AddrFromSlice(p.IP)
		return ok && own.Unmap() == a
	})
}

// leadsBack reports whether an address leads to this or another API server of the
// cluster: where they advertise themselves, where this one listens, and the
// address of the Service kubernetes.
func (s *Server) leadsBack(to netip.AddrPort) bool {
	to = netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port())
	if to == s.cfg.Advertise || to.Addr() == s.kubernetesIP() || s.listening.leadsTo(to) {
		return true
	}
	slice, ok := watchcache.Read[*discoveryv1.EndpointSlice](s.cache.Resource(discoveryv1.SchemeGroupVersion.WithResource("endpointslices")), "default/kubernetes")
	if !ok || !slices.ContainsFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool { return p.Port != nil && *p.Port == int32(to.Port()) }) {
		return false
	}
	return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return slices.Contains(e.Addresses, to.Addr().String()) })
}
