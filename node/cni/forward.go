package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"knarr/node/cni/network"
)

// A node with pods is a router.
const (
	forward4 = "/proc/sys/net/ipv4/ip_forward"
	forward6 = "/proc/sys/net/ipv6/conf/all/forwarding"
)

// forwarding is what all pod networks of one network namespace share: the
// switches as they were before the first, and the state directories of those
// that need them on. The last to go puts them back.
type forwarding struct {
	Former map[string]string `json:"former"`
	Users  []string          `json:"users"`
}

// forwardingPath is in /run because a reboot resets the switches too.
func forwardingPath() (string, error) {
	st, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/run/knarr-forwarding-%d.json", st.Sys().(*syscall.Stat_t).Ino), nil
}

// change lets one process at a time read and replace the shared record; a
// record without users is removed.
func (f *forwarding) change(with func() error) error {
	path, err := forwardingPath()
	if err != nil {
		return err
	}
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
			return fmt.Errorf("lock %s: %w", path, err)
		}
		here, err := os.Stat(path)
		mine, merr := file.Stat()
		if merr != nil {
			return merr
		}
		if err != nil || !os.SameFile(here, mine) {
			continue // the last user removed it meanwhile
		}
		b, err := io.ReadAll(file)
		if err != nil {
			return err
		}
		*f = forwarding{}
		// Unreadable: the switches are taken to be as they were.
		_ = json.Unmarshal(b, f)
		if f.Former == nil {
			f.Former = map[string]string{}
		}
		werr := with()
		if len(f.Users) == 0 {
			return errors.Join(werr, os.Remove(path))
		}
		return errors.Join(werr, f.write(file))
	}
}

func (f *forwarding) write(file *os.File) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err = file.WriteAt(b, 0)
	return err
}

// forward switches forwarding on for the families in use.
func forward(stateDir string, n *network.Conf) error { return Forward(stateDir, n.PodCIDRs) }

// note remembers what a switch was before the first user changed it.
func (f *forwarding) note(path, value string) {
	if _, ok := f.Former[path]; !ok {
		f.Former[path] = value
	}
}

// routersHeard are the switches of this host's own links by which they take addresses
// and routes from routers, as long as the host is none itself. A node is a router now,
// and would lose its address and its way to the world. Links that others made for
// containers are left alone.
func routersHeard() (paths []string) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil // the host then has what was configured
	}
	advertised := map[int]bool{} // a router has told this host a route by the link
	routes, _ := netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
	for _, r := range routes {
		advertised[r.LinkIndex] = true
	}
	for _, l := range links {
		own := slices.Contains([]string{"device", "bond", "vlan", "team"}, l.Type()) && l.Attrs().Flags&net.FlagLoopback == 0
		if !own && !advertised[l.Attrs().Index] {
			continue
		}
		path := acceptRAOf(l.Attrs().Name)
		if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == "1" {
			paths = append(paths, path)
		}
	}
	return paths
}

func acceptRAOf(link string) string { return "/proc/sys/net/ipv6/conf/" + link + "/accept_ra" }

// acceptRA reports whether a path is such a switch.
func acceptRA(path string) bool {
	return path == acceptRAOf(filepath.Base(filepath.Dir(path)))
}

// Forward switches forwarding on for the families of ranges, on behalf of the
// user of a directory. What it was is written down before it is changed, so
// that a crash in between loses nothing.
func Forward(stateDir string, ranges []netip.Prefix) error {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return err
	}
	var off, heard []string
	var f forwarding
	err := f.change(func() error {
		if !slices.Contains(f.Users, stateDir) {
			f.Users = append(f.Users, stateDir)
		}
		for _, p := range ranges {
			path := forward4
			if p.Addr().Is6() {
				path = forward6
				for _, ra := range routersHeard() {
					heard = append(heard, ra)
					f.note(ra, "1")
				}
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if value := strings.TrimSpace(string(b)); value == "0" {
				off = append(off, path)
				f.note(path, value)
			}
		}
		return nil
	})
	for _, path := range heard { // before the router begins
		if werr := os.WriteFile(path, []byte("2"), 0o644); !errors.Is(werr, os.ErrNotExist) {
			err = errors.Join(err, werr)
		}
	}
	for _, path := range off {
		err = errors.Join(err, os.WriteFile(path, []byte("1"), 0o644))
	}
	if err != nil {
		return fmt.Errorf("switch forwarding on: %w", err)
	}
	return nil
}

// Unforward puts back what the first user found, once nobody else needs it. A
// user whose state is gone needs nothing.
func Unforward(stateDir string) error {
	var f forwarding
	err := f.change(func() error {
		f.Users = slices.DeleteFunc(f.Users, func(dir string) bool {
			_, err := os.Stat(dir)
			return dir == stateDir || errors.Is(err, os.ErrNotExist)
		})
		if len(f.Users) > 0 {
			return nil
		}
		var errs []error
		for path, value := range f.Former {
			switch {
			case path == forward4 || path == forward6:
				errs = append(errs, os.WriteFile(path, []byte(value), 0o644))
			case acceptRA(path):
				if err := os.WriteFile(path, []byte(value), 0o644); !errors.Is(err, os.ErrNotExist) {
					errs = append(errs, err) // but for a link that is gone
				}
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return fmt.Errorf("put forwarding back: %w", err)
	}
	return nil
}
