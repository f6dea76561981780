package network

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Loopback is the plugin by which containerd before 2.0 brings up a pod's own lo, in the
// network that it has built in.
const Loopback = "loopback"

// loopback answers for it: there is nothing to undo.
func loopback(c *Conf, verb, path string) (any, error) {
	if verb != "ADD" {
		return nil, nil
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("network namespace of the pod: %w", err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, fmt.Errorf("network namespace of the pod: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		return nil, fmt.Errorf("bring up lo: %w", err)
	}
	r := result{CNIVersion: c.CNIVersion, Interfaces: []resultInterface{{Name: "lo", Sandbox: path}}}
	for version, address := range map[string]string{"4": "127.0.0.1/8", "6": "::1/128"} {
		ip := resultIP{Address: address}
		if old(c.CNIVersion) {
			ip.Version = version
		}
		r.IPs = append(r.IPs, ip)
	}
	return r, nil
}
