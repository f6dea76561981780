// Package iscsi attaches the disks of iSCSI targets to this node, by the host's iscsiadm
// as upstream's kubelet does, and detaches them. It runs iscsiadm and multipath, reads
// /sys/class/iscsi_session, and writes to /sys where the kernel is to look for a disk, or
// to forget it.
package iscsi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Disk is one of a target. Its form in JSON is what Detach needs later.
type Disk struct {
	// Portals are the target's addresses, with their ports.
	Portals []string `json:"portals"`
	IQN     string   `json:"iqn"`
	LUN     int32    `json:"lun"`
	// Interface is iscsiadm's; with an Initiator it is what a new one is made of.
	Interface string `json:"interface"`
	// Initiator is the name that the node has for this disk alone; "" for the host's.
	Initiator string `json:"initiator,omitempty"`
	// Name is the volume's, by which an interface of its own is called.
	Name string `json:"name"`

	DiscoveryCHAP, SessionCHAP bool              `json:"-"`
	Secret                     map[string]string `json:"-"` // names and passwords, by iscsiadm's keys
}

// defaultPort is of a portal that names none.
const defaultPort = "3260"

// Portal is an address with its port: what iscsiadm and the kernel call a portal. Pure.
func Portal(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), defaultPort)
}

// iface is the interface of iscsiadm that the disk's sessions have.
func (d *Disk) iface() string {
	if d.Initiator != "" {
		return d.Portals[0] + ":" + d.Name
	}
	return d.Interface
}

var (
	portal = regexp.MustCompile(`^[][0-9A-Za-z.:%_-]{1,255}$`)
	name   = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.:_-]{0,254}$`)
)

// check refuses what could be read as something else by iscsiadm, or as a path.
func (d *Disk) check() error {
	if len(d.Portals) == 0 || len(d.Portals) > maxPortals {
		return fmt.Errorf("%d portals: from 1 to %d are possible", len(d.Portals), maxPortals)
	}
	for _, p := range d.Portals {
		if !portal.MatchString(p) || strings.HasPrefix(p, "-") {
			return fmt.Errorf("%q is no portal: an address with a port is expected", p)
		}
	}
	for what, value := range map[string]string{"iqn": d.IQN, "iscsiInterface": d.Interface} {
		if !name.MatchString(value) {
			return fmt.Errorf("%s %q is no name", what, value)
		}
	}
	if d.Initiator != "" && !name.MatchString(d.Initiator) {
		return fmt.Errorf("initiatorName %q is no name", d.Initiator)
	}
	return nil
}

const maxPortals = 16

// What the programs say by their exit codes.
const (
	sessionExists = 15
	noSession     = 2
	noObjects     = 21
)

// A Host is where disks are attached.
type Host struct {
	// Run runs a program of the host. It returns its output and exit code, and an error if
	// the code is not 0 or there is none.
	Run func(ctx context.Context, program string, args ...string) (out string, code int, err error)
	// Sys is where the kernel has /sys.
	Sys string
	// Appear bounds how long a disk takes to appear, Join a disk of several ways.
	Appear, Join time.Duration
}

func (h *Host) admin(ctx context.Context, args ...string) (string, error) {
	out, _, err := h.Run(ctx, "iscsiadm", args...)
	if err != nil {
		err = fmt.Errorf("iscsiadm %s: %w: %s", strings.Join(args[:2], " "), err, strings.TrimSpace(out))
	}
	return out, err
}

// Attach has the target's disk on this node, and is its device's path. A target must not
// be attached or detached by two at once.
func (h *Host) Attach(ctx context.Context, d *Disk) (device string, err error) {
	if err := d.check(); err != nil {
		return "", err
	}
	shown, err := h.admin(ctx, "-m", "iface", "-I", d.Interface, "-o", "show")
	if err != nil {
		return "", err
	}
	if d.Initiator != "" {
		if err := h.cloneInterface(ctx, d, shown); err != nil {
			return "", err
		}
	}
	var faults []error
	for _, portal := range d.Portals {
		faults = append(faults, h.login(ctx, d, portal))
	}
	devices, err := h.appear(ctx, d)
	if err != nil {
		return "", fmt.Errorf("failed to get any path for iscsi disk, last err seen:\n%w", errors.Join(append(faults, err)...))
	}
	return h.join(ctx, devices, len(d.Portals) > 1)
}

// cloneInterface makes the disk's own interface, with another initiator's name.
func (h *Host) cloneInterface(ctx context.Context, d *Disk, shown string) error {
	own := d.iface()
	if _, err := h.admin(ctx, "-m", "iface", "-I", own, "-o", "show"); err == nil {
		return nil // by another pod
	}
	if _, err := h.admin(ctx, "-m", "iface", "-I", own, "-o", "new"); err != nil {
		return err
	}
	settings := append(interfaceSettings(shown), [2]string{"iface.initiatorname", d.Initiator})
	for _, s := range settings {
		if _, err := h.admin(ctx, "-m", "iface", "-I", own, "-o", "update", "-n", s[0], "-v", s[1]); err != nil {
			_, _ = h.admin(ctx, "-m", "iface", "-I", own, "-o", "delete")
			return err
		}
	}
	return nil
}

// interfaceSettings are those that an interface hands on to its clone. Pure.
func interfaceSettings(shown string) (settings [][2]string) {
	for line := range strings.Lines(shown) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if ok && value != "<empty>" && key != "iface.iscsi_ifacename" && key != "iface.initiatorname" && strings.HasPrefix(key, "iface.") {
			settings = append(settings, [2]string{key, value})
		}
	}
	return settings
}

// The keys of a Secret with names and passwords.
var (
	discoveryKeys = []string{"discovery.sendtargets.auth.username", "discovery.sendtargets.auth.password",
		"discovery.sendtargets.auth.username_in", "discovery.sendtargets.auth.password_in"}
	sessionKeys = []string{"node.session.auth.username", "node.session.auth.password",
		"node.session.auth.username_in", "node.session.auth.password_in"}
)

// login makes a session with the target at one portal, if there is none.
func (h *Host) login(ctx context.Context, d *Disk, portal string) error {
	discovery := []string{"-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", d.iface()}
	node := []string{"-m", "node", "-p", portal, "-T", d.IQN, "-I", d.iface()}
	with := func(base []string, more ...string) error {
		_, err := h.admin(ctx, slices.Concat(base, more)...)
		return err
	}
	_ = with(discovery, "-o", "new") // there may be one
	if d.DiscoveryCHAP {
		if err := h.authenticate(ctx, discovery, "discovery.sendtargets.auth.authmethod", discoveryKeys, d.Secret); err != nil {
			return err
		}
	}
	if err := with(discovery, "--discover"); err != nil {
		_ = with(discovery, "-o", "delete")
		return fmt.Errorf("iscsi: failed to sendtargets to portal %s: %w", portal, err)
	}
	// The kernel would make a device of each disk of the target, which nobody would take
	// away. Old versions do not know this.
	_ = with(node, "-o", "update", "-n", "node.session.scan", "-v", "manual")
	if d.SessionCHAP {
		if err := h.authenticate(ctx, node, "node.session.auth.authmethod", sessionKeys, d.Secret); err != nil {
			return err
		}
	}
	if out, code, err := h.Run(ctx, "iscsiadm", append(node, "--login")...); err != nil && code != sessionExists {
		_ = with(node, "-o", "delete")
		return fmt.Errorf("iscsi: failed to attach disk: Error: %s (%w)", strings.TrimSpace(out), err)
	}
	_ = with(node, "-o", "update", "-n", "node.startup", "-v", "manual") // a host's start must not wait for it
	return nil
}

// authenticate writes names and passwords into a record; no error says them.
func (h *Host) authenticate(ctx context.Context, record []string, method string, keys []string, secret map[string]string) error {
	if _, err := h.admin(ctx, slices.Concat(record, []string{"-o", "update", "-n", method, "-v", "CHAP"})...); err != nil {
		return err
	}
	for _, key := range keys {
		if value := secret[key]; value != "" {
			if _, _, err := h.Run(ctx, "iscsiadm", slices.Concat(record, []string{"-o", "update", "-n", key, "-v", value})...); err != nil {
				return fmt.Errorf("iscsi: failed to update key %q: %w", key, err)
			}
		}
	}
	return nil
}

// Detach takes the disk off this node, and ends the sessions with its target if no disk
// in others is of them.
func (h *Host) Detach(ctx context.Context, d *Disk, others []Disk) error {
	if err := d.check(); err != nil {
		return nil // it was never attached
	}
	busy := false
	for i := range others {
		o := &others[i]
		shared := func(portal string) bool { return slices.Contains(o.Portals, portal) }
		if o.IQN == d.IQN && o.check() == nil && o.iface() == d.iface() && slices.ContainsFunc(d.Portals, shared) {
			if busy = true; o.LUN == d.LUN {
				return nil
			}
		}
	}
	if err := h.forget(ctx, d); err != nil || busy {
		return err
	}
	portals := d.Portals
	if len(h.sessions(d)) == 0 { // it was never attached, or somebody has ended them
		portals = nil
	}
	var faults []error
	for _, portal := range portals {
		for _, what := range [][]string{{"--logout"}, {"-o", "delete"}} {
			out, code, err := h.Run(ctx, "iscsiadm", slices.Concat([]string{"-m", "node", "-p", portal, "-T", d.IQN, "-I", d.iface()}, what)...)
			if err != nil && code != noSession && code != noObjects {
				faults = append(faults, fmt.Errorf("iscsi: failed to detach disk from portal %s: %w: %s", portal, err, strings.TrimSpace(out)))
			}
		}
	}
	if err := errors.Join(faults...); err != nil || d.Initiator == "" {
		return err
	}
	if out, code, err := h.Run(ctx, "iscsiadm", "-m", "iface", "-I", d.iface(), "-o", "delete"); err != nil && code != noSession && code != noObjects {
		return fmt.Errorf("iscsi: failed to delete iface: %w: %s", err, strings.TrimSpace(out))
	}
	return nil
}
