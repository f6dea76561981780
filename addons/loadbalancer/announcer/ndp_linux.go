package announcer

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"

	"knarr/internal/run"
)

// An ndpResponder answers neighbour solicitations on one link.
type ndpResponder struct {
	ifi       *net.Interface
	conn      *ndp.Conn
	addrs     atomic.Pointer[map[netip.Addr]bool]
	contested chan<- netip.Addr
	joined    map[netip.Addr]netip.Addr // the multicast group of each address
	wait      run.Group
}

// allNodes is every machine on a link.
var allNodes = netip.MustParseAddr("ff02::1")

func openNDP(ifi *net.Interface, contested chan<- netip.Addr) (responder, error) {
	conn, _, err := ndp.Listen(ifi, ndp.LinkLocal)
	if err != nil {
		return nil, err
	}
	var only ipv6.ICMPFilter
	only.SetAll(true)
	only.Accept(ipv6.ICMPTypeNeighborSolicitation)
	only.Accept(ipv6.ICMPTypeNeighborAdvertisement)
	if err := errors.Join(conn.SetICMPFilter(&only), conn.JoinGroup(allNodes)); err != nil {
		conn.Close()
		return nil, err
	}
	r := &ndpResponder{ifi: ifi, conn: conn, contested: contested, joined: map[netip.Addr]netip.Addr{}}
	r.addrs.Store(&map[netip.Addr]bool{})
	r.wait.Go("NDP", r.serve)
	return r, nil
}

// serve answers solicitations of the addresses.
func (r *ndpResponder) serve() {
	for {
		m, cm, from, err := r.conn.ReadFrom()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			var failed *net.OpError
			if errors.As(err, &failed) && !failed.Timeout() {
				return // the link is gone; whoever sets the addresses next learns of it
			}
			continue // what came is no such packet
		}
		if cm != nil && cm.HopLimit != ndp.HopLimit { // from another network
			continue
		}
		addrs := *r.addrs.Load()
		switch m := m.(type) {
		case *ndp.NeighborSolicitation:
			if addrs[m.TargetAddress] {
				to, solicited := from, true
				if from.IsUnspecified() { // somebody wants to use it
					to, solicited = allNodes, false
				}
				_ = r.advertise(m.TargetAddress, to.WithZone(""), solicited) // it asks again
			}
		case *ndp.NeighborAdvertisement:
			if addrs[m.TargetAddress] && !r.ours(m.Options) {
				select {
				case r.contested <- m.TargetAddress:
				default:
				}
			}
		}
	}
}

func (r *ndpResponder) ours(options []ndp.Option) bool {
	for _, o := range options {
		if l, ok := o.(*ndp.LinkLayerAddress); ok && bytes.Equal(l.Addr, r.ifi.HardwareAddr) {
			return true
		}
	}
	return false
}

func (r *ndpResponder) advertise(a, to netip.Addr, solicited bool) error {
	return r.conn.WriteTo(&ndp.NeighborAdvertisement{
		Solicited: solicited, Override: true, TargetAddress: a,
		Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: r.ifi.HardwareAddr}},
	}, nil, to)
}

func (r *ndpResponder) set(addrs map[netip.Addr]bool) error {
	for a, group := range r.joined {
		if !addrs[a] {
			delete(r.joined, a)
			if !r.inUse(group) {
				_ = r.conn.LeaveGroup(group) // then it hears what is not for it
			}
		}
	}
	for a := range addrs {
		if _, is := r.joined[a]; is {
			continue
		}
		group, err := ndp.SolicitedNodeMulticast(a)
		if err == nil && !r.inUse(group) {
			err = r.conn.JoinGroup(group)
		}
		if err != nil {
			return err
		}
		r.joined[a] = group
	}
	r.addrs.Store(&addrs)
	return nil
}

func (r *ndpResponder) inUse(group netip.Addr) bool {
	for _, g := range r.joined {
		if g == group {
			return true
		}
	}
	return false
}

func (r *ndpResponder) announce(a netip.Addr) error { return r.advertise(a, allNodes, false) }

func (r *ndpResponder) close() {
	r.conn.Close()
	r.wait.Wait()
}
