// Package network attaches pods to a node's bridge. It writes links, addresses
// and routes, one nftables table, and under its state directory who has which
// address and host port.
package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// Conf is the plugin's part of a network configuration.
type Conf struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	// Bridge is the name of the link all pods of this node are on.
	Bridge string `json:"bridge"`
	// MTU of the bridge and the pods' links; 0 leaves it to the kernel.
	MTU int `json:"mtu,omitempty"`
	// PodCIDRs are this node's ranges, at most one per address family.
	PodCIDRs []netip.Prefix `json:"podCIDRs"`
	// ClusterCIDRs are what pods reach with their own address.
	ClusterCIDRs []netip.Prefix `json:"clusterCIDRs,omitempty"`
	// Table is the name of the nftables table.
	Table string `json:"table"`
	// StateDir keeps addresses and attachments.
	StateDir string `json:"stateDir"`
	// TunnelPort is the UDP port by which nodes send each other their pods'
	// packets, to which no pod may send; 0 if they do not.
	TunnelPort uint16 `json:"tunnelPort,omitempty"`
	// NewPods are the sets of new pods; nil: nobody holds pods to policies.
	NewPods *NewPods `json:"newPods,omitempty"`

	podUID string  // of the pod that is attached
	kernel *Kernel // nil: none that stays open

	Capabilities  map[string]bool `json:"capabilities,omitempty"`
	RuntimeConfig struct {
		PortMappings []PortMapping `json:"portMappings,omitempty"`
		Bandwidth    *Bandwidth    `json:"bandwidth,omitempty"`
	} `json:"runtimeConfig,omitzero"`
	PrevResult json.RawMessage `json:"prevResult,omitempty"`
	// Valid are the attachments a GC keeps.
	Valid []struct {
		ContainerID string `json:"containerID"`
		IfName      string `json:"ifname"`
	} `json:"cni.dev/valid-attachments,omitempty"`
}

// PortMapping sends a port of the node to a port of the pod.
type PortMapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// Validate reports everything that is wrong with the configuration.
func (c *Conf) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Bridge == "" || len(c.Bridge) > 15 || strings.ContainsAny(c.Bridge, "/ \t") {
		bad("bridge: %q is no name for a link (1 to 15 characters)", c.Bridge)
	}
	if c.Table == "" {
		bad("table: must be set")
	}
	if !filepath.IsAbs(c.StateDir) {
		bad("stateDir: %q is not an absolute path", c.StateDir)
	}
	if c.MTU < 0 || c.MTU > 65535 {
		bad("mtu: %d is not between 0 and 65535", c.MTU)
	}
	if len(c.PodCIDRs) == 0 {
		bad("podCIDRs: must have a range")
	}
	seen := map[bool]bool{}
	for _, p := range c.PodCIDRs {
		switch room := p.Addr().BitLen() - p.Bits(); {
		case !p.IsValid():
			bad("podCIDRs: an address range is invalid")
		case p != p.Masked():
			bad("podCIDRs: %s has bits beyond its length", p)
		case room < 2:
			bad("podCIDRs: %s has no room for a gateway and a pod", p)
		case seen[p.Addr().Is4()]:
			bad("podCIDRs: %s is the second range of its family", p)
		}
		seen[p.Addr().Is4()] = true
	}
	for _, m := range c.RuntimeConfig.PortMappings {
		if m.HostPort == 0 {
			continue // the CRI's way to say: not published
		}
		if m.ContainerPort == 0 {
			bad("portMappings: host port %d has no container port", m.HostPort)
		}
		if !slices.Contains([]string{"tcp", "udp", "sctp"}, strings.ToLower(m.Protocol)) {
			bad("portMappings: protocol %q of host port %d is not supported (tcp, udp and sctp are)", m.Protocol, m.HostPort)
		}
		if m.HostIP != "" {
			if _, err := netip.ParseAddr(m.HostIP); err != nil {
				bad("portMappings: hostIP %q is no address", m.HostIP)
			}
		}
	}
	return errors.Join(errs...)
}

// gateway is the bridge's own address in a range: the first.
func gateway(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }
