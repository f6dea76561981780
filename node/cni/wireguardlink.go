package cni

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The kernel's words for WireGuard, by its uapi.
const (
	wgDeviceIfindex    = 1
	wgDevicePrivateKey = 3
	wgDeviceFlags      = 5
	wgDeviceListenPort = 6
	wgDevicePeers      = 8

	wgPeerPublicKey  = 1
	wgPeerFlags      = 3
	wgPeerEndpoint   = 4
	wgPeerAllowedIPs = 9

	wgPeerRemove            = 1
	wgPeerReplaceAllowedIPs = 2
	wgPeerUpdateOnly        = 4

	wgAllowedFamily = 1
	wgAllowedIP     = 2
	wgAllowedMask   = 3
)

// peersInMessage is how many peers go to the kernel at once: the length of their list has
// 16 bits, and a peer of two ranges takes 200 bytes.
const peersInMessage = 100

// setWireguard gives a link its key, port and peers. Those that are there and stay are not
// interrupted: what is not wanted any more is removed first.
func setWireguard(index int, key []byte, port uint16, peers []wireguardPeer) error {
	family, err := netlink.GenlFamilyGet("wireguard")
	if err != nil {
		return fmt.Errorf("find WireGuard: %w", err)
	}
	conn, err := mdnetlink.Dial(unix.NETLINK_GENERIC, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	have, err := listWireguard(conn, family.ID, index)
	if err != nil {
		return err
	}
	wanted := map[wireguardKey]bool{}
	for _, p := range peers {
		wanted[p.key] = true
	}
	type change func(*mdnetlink.AttributeEncoder) error
	var changes []change
	for _, p := range have {
		if !wanted[p.key] {
			changes = append(changes, func(ae *mdnetlink.AttributeEncoder) error {
				ae.Bytes(wgPeerPublicKey, p.key[:])
				ae.Uint32(wgPeerFlags, wgPeerRemove|wgPeerUpdateOnly)
				return nil
			})
		}
	}
	for _, p := range peers {
		changes = append(changes, p.encode)
	}
	for first := true; first || len(changes) > 0; first = false {
		part := changes[:min(len(changes), peersInMessage)]
		changes = changes[len(part):]
		ae := mdnetlink.NewAttributeEncoder()
		ae.Uint32(wgDeviceIfindex, uint32(index))
		if first {
			ae.Bytes(wgDevicePrivateKey, key)
			ae.Uint16(wgDeviceListenPort, port)
		}
		ae.Nested(wgDevicePeers, func(list *mdnetlink.AttributeEncoder) error {
			for i, one := range part {
				list.Nested(uint16(i), one)
			}
			return nil
		})
		attrs, err := ae.Encode()
		if err != nil {
			return err
		}
		_, err = conn.Execute(mdnetlink.Message{
			Header: mdnetlink.Header{Type: mdnetlink.HeaderType(family.ID), Flags: mdnetlink.Request | mdnetlink.Acknowledge},
			Data:   append([]byte{unix.WG_CMD_SET_DEVICE, 1, 0, 0}, attrs...),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// encode writes a peer as the kernel reads it.
func (p wireguardPeer) encode(ae *mdnetlink.AttributeEncoder) error {
	ae.Bytes(wgPeerPublicKey, p.key[:])
	ae.Uint32(wgPeerFlags, wgPeerReplaceAllowedIPs)
	ae.Bytes(wgPeerEndpoint, socketAddress(p.endpoint))
	ae.Nested(wgPeerAllowedIPs, func(list *mdnetlink.AttributeEncoder) error {
		for i, r := range p.ranges {
			list.Nested(uint16(i), func(ip *mdnetlink.AttributeEncoder) error {
				ip.Uint16(wgAllowedFamily, uint16(family(r.Addr())))
				ip.Bytes(wgAllowedIP, r.Addr().AsSlice())
				ip.Uint8(wgAllowedMask, uint8(r.Bits()))
				return nil
			})
		}
		return nil
	})
	return nil
}

// socketAddress is an address and port as struct sockaddr_in or sockaddr_in6.
func socketAddress(at netip.AddrPort) []byte {
	size := unix.SizeofSockaddrInet4
	if at.Addr().Is6() {
		size = unix.SizeofSockaddrInet6
	}
	b := make([]byte, size)
	binary.NativeEndian.PutUint16(b, uint16(family(at.Addr())))
	binary.BigEndian.PutUint16(b[2:], at.Port())
	if at.Addr().Is6() {
		copy(b[8:], at.Addr().AsSlice())
	} else {
		copy(b[4:], at.Addr().AsSlice())
	}
	return b
}

// wireguardOf gives the peers that a tunnel has, of which it needs no endpoint: none if it is
// not there or no WireGuard.
func wireguardOf(tunnel string) ([]wireguardPeer, error) {
	link, err := netlink.LinkByName(tunnel)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) || err == nil && link.Type() != "wireguard" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("tunnel %s: %w", tunnel, err)
	}
	family, err := netlink.GenlFamilyGet("wireguard")
	if err != nil {
		return nil, fmt.Errorf("find WireGuard: %w", err)
	}
	conn, err := mdnetlink.Dial(unix.NETLINK_GENERIC, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return listWireguard(conn, family.ID, link.Attrs().Index)
}

// listWireguard gives the peers that a link has: their keys and ranges.
func listWireguard(conn *mdnetlink.Conn, kind uint16, index int) ([]wireguardPeer, error) {
	which := mdnetlink.NewAttributeEncoder()
	which.Uint32(wgDeviceIfindex, uint32(index))
	attrs, err := which.Encode()
	if err != nil {
		return nil, err
	}
	answers, err := conn.Execute(mdnetlink.Message{
		Header: mdnetlink.Header{Type: mdnetlink.HeaderType(kind), Flags: mdnetlink.Request | mdnetlink.Dump},
		Data:   append([]byte{unix.WG_CMD_GET_DEVICE, 1, 0, 0}, attrs...),
	})
	if err != nil {
		return nil, fmt.Errorf("list peers: %w", err)
	}
	var all []wireguardPeer
	for _, m := range answers {
		if len(m.Data) < 4 {
			continue
		}
		some, err := decodeWireguard(m.Data[4:])
		if err != nil {
			return nil, fmt.Errorf("list peers: %w", err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// decodeWireguard gives the peers of one part of the kernel's answer. One of many ranges is in
// several, each with some of them. Pure.
func decodeWireguard(attrs []byte) (all []wireguardPeer, err error) {
	device, err := mdnetlink.NewAttributeDecoder(attrs)
	if err != nil {
		return nil, err
	}
	for device.Next() {
		if device.Type() != wgDevicePeers {
			continue
		}
		device.Nested(func(list *mdnetlink.AttributeDecoder) error {
			for list.Next() {
				var p wireguardPeer
				list.Nested(p.decode)
				if p.key != (wireguardKey{}) {
					all = append(all, p)
				}
			}
			return nil
		})
	}
	return all, device.Err()
}

// decode reads a peer as the kernel writes it.
func (p *wireguardPeer) decode(one *mdnetlink.AttributeDecoder) error {
	for one.Next() {
		switch one.Type() {
		case wgPeerPublicKey:
			if b := one.Bytes(); len(b) == len(p.key) {
				p.key = wireguardKey(b)
			}
		case wgPeerAllowedIPs:
			one.Nested(func(list *mdnetlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(func(ip *mdnetlink.AttributeDecoder) error {
						var addr netip.Addr
						bits := -1
						for ip.Next() {
							switch ip.Type() {
							case wgAllowedIP:
								addr, _ = netip.AddrFromSlice(ip.Bytes())
							case wgAllowedMask:
								bits = int(ip.Uint8())
							}
						}
						if r := netip.PrefixFrom(addr, bits); r.IsValid() {
							p.ranges = append(p.ranges, r)
						}
						return nil
					})
				}
				return nil
			})
		}
	}
	return nil
}
