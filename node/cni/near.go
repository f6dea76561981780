package cni

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nearness gives what reports whether another node is near: its address is on the link
// of this node's own address, behind no router, and a link with hardware addresses, on
// which it can be given packets for others. At the ends of a VPN's link only its own
// addresses pass. So both of two nodes see it alike.
func (c Config) nearness() func(netip.Addr) bool {
	own := map[bool]int{} // the link of the address of each family
	for _, ip := range c.NodeIPs {
		link, err := linkOf(ip)
		if err != nil {
			continue
		}
		attrs := link.Attrs()
		if attrs.EncapType == "ether" && attrs.RawFlags&(unix.IFF_NOARP|unix.IFF_POINTOPOINT|unix.IFF_LOOPBACK) == 0 {
			own[ip.Is6()] = attrs.Index
		}
	}
	return func(a netip.Addr) bool {
		link, ok := own[a.Is6()]
		if !ok {
			return false
		}
		found, err := netlink.RouteGet(a.AsSlice())
		return err == nil && len(found) == 1 && found[0].Gw == nil && found[0].Via == nil && found[0].LinkIndex == link
	}
}

// followAddresses calls for each change of this machine's addresses, but for those in
// the ranges of pods, until ctx ends: by its own addresses another node comes to be near
// or far. After an error it begins anew.
func followAddresses(ctx context.Context, pods []string, changed func()) {
	for ctx.Err() == nil {
		updates, stop, err := subscribe()
		if err == nil {
			follow(ctx, updates, pods, changed)
			stop()
			changed() // some may have been lost
		} else {
			slog.WarnContext(ctx, "follow addresses, trying again", "err", err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// subscribe gives the changes of addresses in the network namespace of the calling
// thread, until it is stopped.
func subscribe() (updates chan netlink.AddrUpdate, stop func(), err error) {
	updates, done := make(chan netlink.AddrUpdate), make(chan struct{})
	if err := netlink.AddrSubscribe(updates, done); err != nil {
		return nil, nil, err
	}
	return updates, func() {
		close(done)
		for range updates { // what reads the kernel's messages must come to its end
		}
	}, nil
}

func follow(ctx context.Context, updates <-chan netlink.AddrUpdate, pods []string, changed func()) {
	for {
		select {
		case u, open := <-updates:
			if !open {
				return
			}
			if p, ok := prefix(&u.LinkAddress); !ok || !within(p, pods) {
				changed()
			}
		case <-ctx.Done():
			return
		}
	}
}
