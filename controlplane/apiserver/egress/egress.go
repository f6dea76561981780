// Package egress guards the connections that the API server opens to addresses
// taken from objects: Nodes, pods and endpoints name them, and none of them may lead a
// request back into an API server. It reads nothing but the system's resolver
// and writes nothing.
package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// dialTime bounds an attempt to connect, with all addresses of a name.
const dialTime = 30 * time.Second

// maxAddresses bounds how many addresses of one name are tried.
const maxAddresses = 16

// ErrRefused is upstream's answer to a proxy whose address may not be reached.
var ErrRefused = apierrors.NewBadRequest("address not allowed")

// A Guard connects to addresses that others have named. The zero value knows no
// API servers.
type Guard struct {
	// Own reports whether an address leads to an API server of this cluster.
	Own func(netip.AddrPort) bool
	// Lookup resolves a name. Default: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Connect connects to an address that has been checked. Default: a net.Dialer.
	Connect func(ctx context.Context, network, address string) (net.Conn, error)
}

// Proxyable refuses addresses that lead to this host or its neighbours only.
func Proxyable(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsValid() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// Dial connects to whatever is no API server.
func (g *Guard) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return g.dial(ctx, network, address, false)
}

// DialProxied connects for a proxy, whose user may reach neither an API server
// nor what only this host reaches.
func (g *Guard) DialProxied(ctx context.Context, network, address string) (net.Conn, error) {
	return g.dial(ctx, network, address, true)
}

// dial resolves a name once, and connects to the addresses that were checked:
// a second answer of the resolver could be another.
func (g *Guard) dial(ctx context.Context, network, address string, proxied bool) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	to, err := g.resolve(ctx, address)
	if err != nil {
		return nil, err
	}
	for _, a := range to {
		if proxied && !Proxyable(a.Addr()) || g.Own != nil && g.Own(a) {
			return nil, ErrRefused
		}
	}
	connect := g.Connect
	if connect == nil {
		connect = (&net.Dialer{KeepAlive: dialTime}).DialContext
	}
	var errs []error
	for _, a := range to {
		conn, err := connect(ctx, network, a.String())
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// resolve is the addresses of a host and a port.
func (g *Guard) resolve(ctx context.Context, address string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, &net.AddrError{Err: "invalid port", Addr: address}
	}
	var found []netip.Addr
	if a, err := netip.ParseAddr(host); err == nil {
		found = []netip.Addr{a}
	} else if g.Lookup != nil {
		found, err = g.Lookup(ctx, host)
		if err != nil {
			return nil, err
		}
	} else if found, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, errors.New("no addresses for hostname")
	}
	to := make([]netip.AddrPort, 0, len(found))
	for _, a := range found[:min(len(found), maxAddresses)] {
		to = append(to, netip.AddrPortFrom(a.Unmap(), uint16(port)))
	}
	return to, nil
}
