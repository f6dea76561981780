// Package cni installs the pod network of a node. It writes the network
// configuration and the plugin program, the bridge, the nftables table, and
// the kernel's forwarding switches, and takes all of it back.
package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"knarr/internal/programs"
	"knarr/node/cni/network"
)

// confName makes the file come first among what users put beside it.
const confName = "10-knarr.conflist"

// Config says what a node's pod network is.
type Config struct {
	// Dir is the directory of network configurations. Default /etc/cni/net.d.
	Dir string
	// BinDir is the directory of network plugins. Default /opt/cni/bin.
	BinDir string
	// Bridge is the name of the link the pods are on. Default knarr0.
	Bridge string
	// PodCIDRs are this node's address ranges, one per family.
	PodCIDRs []string
	// ClusterCIDRs are the ranges of all pods; traffic to anything else leaves
	// with the node's address. Default: PodCIDRs.
	ClusterCIDRs []string
	// MTU of the pods' links. Default: that of the kernel's new links, 1500.
	MTU int
	// Table is the name of the nftables table. Default: Bridge with "-cni".
	Table string
	// StateDir keeps addresses and attachments. Default /var/lib/knarr/cni.
	StateDir string
	// Backend is how packets reach pods of other nodes. Default NoBackend.
	Backend string
	// NodeIPs are this node's addresses, as the other nodes reach it, one of each
	// family; tunnels go between the first ones.
	NodeIPs []netip.Addr
	// Tunnel is the name of the VXLAN link. Default: Bridge with "x".
	Tunnel string
	// NewPods are the sets that close new pods until their policies are in force;
	// without a table: none.
	NewPods network.NewPods
	// DNSPort is where the node's DNS answers pods at the bridge's addresses; 0: nowhere.
	DNSPort uint16
	// NetworkID distinguishes this cluster's tunnelled packets from another's: 24 bits.
	NetworkID uint32
}

// The backends, by the names people know them by.
const (
	VXLAN = "vxlan"
	// DirectVXLAN routes to the nodes that share a link with this one, and has the
	// tunnel for the others. It is not the default: the networks of most clouds look
	// like a link and drop what does not come from a machine's own address.
	DirectVXLAN = "vxlan-direct"
	HostGateway = "host-gw"
	WireGuard   = "wireguard-native"
	NoBackend   = "none"
)

// Where runtimes look for networks and their plugins unless they are told otherwise.
const customaryDir, customaryBinDir = "/etc/cni/net.d", "/opt/cni/bin"

func (c Config) withDefaults() Config {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&c.Dir, customaryDir)
	def(&c.BinDir, customaryBinDir)
	def(&c.Bridge, "knarr0")
	def(&c.Table, c.Bridge+"-cni")
	def(&c.Tunnel, c.Bridge+"x")
	def(&c.Backend, NoBackend)
	def(&c.StateDir, "/var/lib/knarr/cni")
	if len(c.ClusterCIDRs) == 0 {
		c.ClusterCIDRs = c.PodCIDRs
	}
	return c
}

// underlay is the address that tunnels are between.
func (c Config) underlay() netip.Addr {
	if len(c.NodeIPs) == 0 {
		return netip.Addr{}
	}
	return c.NodeIPs[0]
}

// vxlan reports whether there is a VXLAN tunnel to other nodes.
func (c Config) vxlan() bool { return c.Backend == VXLAN || c.Backend == DirectVXLAN }

// conf gives the plugin's configuration.
func (c Config) conf() (*network.Conf, error) {
	n := &network.Conf{
		Name: networkName(c), Type: programs.CNI, Bridge: c.Bridge, MTU: c.MTU, Table: c.Table, StateDir: c.StateDir,
		Capabilities: map[string]bool{"portMappings": true, "bandwidth": true},
	}
	if c.vxlan() {
		n.TunnelPort = vxlanPort
	}
	if c.NewPods.Table != "" {
		n.NewPods = &c.NewPods
	}
	var errs []error
	parse := func(what string, list []string) (ranges []netip.Prefix) {
		for _, s := range list {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", what, err))
				continue
			}
			ranges = append(ranges, p.Masked())
		}
		return ranges
	}
	n.PodCIDRs = parse("pod range", c.PodCIDRs)
	n.ClusterCIDRs = parse("cluster range", c.ClusterCIDRs)
	if len(errs) == 0 {
		errs = append(errs, n.Validate())
	}
	return n, errors.Join(errs...)
}

// networkName is the network's name, which libcni names its own files after;
// those of two clusters on one machine must differ.
func networkName(c Config) string { return "knarr-" + c.Bridge }

// conflist gives the network configuration as written. Pure.
func conflist(n *network.Conf) ([]byte, error) {
	// Version 1.0.0 on purpose: from 1.1.0 on the runtime starts the plugin
	// every time it is asked for its own status.
	b, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       n.Name,
		"plugins":    []*network.Conf{n},
	}, "", "  ")
	return append(b, '\n'), err
}

// Install puts the pod network in place; done again it repairs it. Pods keep
// their addresses and host ports. The configuration is written last: what sees
// it may use it.
func Install(c Config) error {
	c = c.withDefaults()
	if c.MTU == 0 && (c.vxlan() || c.Backend == WireGuard) {
		c.MTU = tunnelMTU(c.underlay(), c.Backend)
	}
	n, err := c.conf()
	if err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	if _, err := programs.Unpack(c.BinDir, programs.CNI); err != nil {
		return err
	}
	if err := offerLoopback(c.BinDir); err != nil {
		return err
	}
	if err := forward(c.StateDir, n); err != nil {
		return err
	}
	if _, err := network.EnsureBridge(n); err != nil {
		return err
	}
	if err := network.CollectGone(n, time.Now()); err != nil {
		slog.Warn("what pods that are gone had is kept", "err", err)
	}
	if err := network.EnsureTable(n); err != nil {
		return err
	}
	b, err := conflist(n)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(c.Dir, confName), b)
}

// Serve does in this process what the plugin is asked, until ctx ends.
func Serve(ctx context.Context, c Config) error { return network.Serve(ctx, c.withDefaults().StateDir) }

// Intact says what is missing of what Install put in place and others may have
// taken away, such as a firewall that started anew.
func Intact(c Config) error {
	c = c.withDefaults()
	n, err := c.conf()
	if err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	if err := network.Ready(n); err != nil {
		return err
	}
	rules, err := rulesOf(network.Masquerading(c.Table))
	if err == nil && len(rules) == 0 {
		err = fmt.Errorf("nftables table %s is empty", c.Table)
	}
	return err
}

// Admit lets pods' packets through the firewalls of others on this host, which drop what
// they do not know. What is there is left as it is.
func Admit(c Config) error {
	c = c.withDefaults()
	n, err := c.conf()
	if err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	return errors.Join(admit(c, n), admitLegacy(c, n))
}

// Remove takes back what Install and the plugin did: links, table, forwarding,
// state, configuration. What is not there is no error.
func Remove(c Config) error {
	c = c.withDefaults()
	errs := []error{
		removeWays(c),
		removeIfOurs(filepath.Join(c.Dir, confName), networkName(c)),
		removeCustomary(networkName(c)),
		network.RemoveLinks(c.Bridge, c.StateDir),
		network.RemoveTable(c.Table),
		withdraw(c.Table),
		withdrawLegacy(c.Table),
		Unforward(c.StateDir),
	}
	errs = append(errs, removeResults(resultsDir, networkName(c)))
	if errors.Join(errs...) == nil {
		errs = append(errs, os.RemoveAll(c.StateDir))
	}
	return errors.Join(errs...)
}

// resultsDir is where libcni remembers the result of each ADD until its DEL,
// which pods that were killed with the node never had.
const resultsDir = "/var/lib/cni/results"

// removeResults removes what is remembered of one network, whose name may be the
// beginning of another's, and the directory once nobody's are left.
func removeResults(dir, network string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove results of the pod network: %w", err)
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		rest, ours := strings.CutPrefix(e.Name(), network+"-")
		if !ours || !e.Type().IsRegular() {
			continue
		}
		// NAME-CONTAINER-LINK; the file itself says which part is which.
		var result struct{ NetworkName string }
		b, err := os.ReadFile(path)
		if err == nil && json.Unmarshal(b, &result) == nil && result.NetworkName != "" {
			ours = result.NetworkName == network
		} else {
			ours = strings.Count(rest, "-") == 1
		}
		if ours {
			errs = append(errs, os.Remove(path))
		}
	}
	// Only if they are empty.
	_ = os.Remove(dir)
	_ = os.Remove(filepath.Dir(dir))
	return errors.Join(errs...)
}

// removeIfOurs removes the configuration unless another cluster wrote it.
func removeIfOurs(path, name string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var list struct{ Name string }
	if json.Unmarshal(b, &list) == nil && list.Name != name {
		return nil
	}
	return os.Remove(path)
}

// removeCustomary removes a network and its plugin from where they were put for another
// runtime.
func removeCustomary(name string) error {
	path := filepath.Join(customaryDir, confName)
	if err := removeIfOurs(path, name); err != nil {
		return err
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) { // another cluster's, which has the plugin
		return err
	}
	var errs []error
	lo := filepath.Join(customaryBinDir, network.Loopback)
	if to, err := os.Readlink(lo); err == nil && to == programs.CNI {
		errs = append(errs, os.Remove(lo))
	}
	return errors.Join(append(errs, programs.Remove(customaryBinDir, programs.CNI))...)
}

// offerLoopback puts a plugin for pods' own lo where another runtime looks for one, if
// there is none.
func offerLoopback(dir string) error {
	if dir != customaryBinDir {
		return nil
	}
	if err := os.Symlink(programs.CNI, filepath.Join(dir, network.Loopback)); !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// writeFile replaces path whole, and only if it changes: each change makes the
// runtime read it again.
func writeFile(path string, b []byte) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(b) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".knarr-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
