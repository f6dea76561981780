package cni

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// CheckTunnel makes a VXLAN link in the network namespace of the calling thread,
// which is to end afterwards.
func CheckTunnel() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "knarr-check-x"
	if err := netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, Port: vxlanPort}); err != nil {
		return fmt.Errorf("add a VXLAN link: %w", err)
	}
	return nil
}
