package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// An address is taken by a symbolic link named after it, whose target is the
// owner: making one either happens whole or not at all, so that a crash leaves
// neither a half-written file nor an address with two owners.

// lastName holds where the search went on last, so that an address rests as
// long as possible before it is given out again.
const lastName = "last"

// allocate takes a free address of each range for owner, or none. Of what it had it gets
// again what is still its own.
func allocate(dir string, ranges []netip.Prefix, owner string, had []netip.Addr) ([]netip.Addr, error) {
	var got []netip.Addr
	for _, r := range ranges {
		addr, err := allocateIn(rangeDir(dir, r), r, owner, had)
		if err != nil {
			return nil, errors.Join(err, release(dir, ranges, owner, got))
		}
		got = append(got, addr)
	}
	return got, nil
}

// allocateIn tries one address after the other: with a list of those that are taken, a
// pod would cost more the more there are.
func allocateIn(dir string, r netip.Prefix, owner string, had []netip.Addr) (netip.Addr, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return netip.Addr{}, err
	}
	for _, addr := range had {
		if r.Contains(addr) && owns(dir, addr, owner) {
			return addr, nil
		}
	}
	var last netip.Addr
	if b, err := os.ReadFile(filepath.Join(dir, lastName)); err == nil {
		last, _ = netip.ParseAddr(string(b)) // unreadable: start over
	}
	for addr := range candidates(r, last) {
		err := os.Symlink(owner, filepath.Join(dir, addr.String()))
		if errors.Is(err, os.ErrExist) {
			continue
		} else if err != nil {
			return addr, err
		}
		// Only for fairness: nothing is lost if it is.
		_ = os.WriteFile(filepath.Join(dir, lastName), []byte(addr.String()), 0o600)
		return addr, nil
	}
	return netip.Addr{}, fmt.Errorf("no address is free in %s", r)
}

func owns(dir string, addr netip.Addr, owner string) bool {
	o, err := os.Readlink(filepath.Join(dir, addr.String()))
	return err == nil && o == owner
}

// candidates are the addresses of the range that a pod may have, those after last first,
// going round once. The range's own address, the gateway and IPv4's broadcast are no pod's.
func candidates(r netip.Prefix, last netip.Addr) iter.Seq[netip.Addr] {
	first, end := gateway(r).Next(), lastAddr(r)
	usable := func(a netip.Addr) bool {
		return a.IsValid() && r.Contains(a) && !a.Less(first) && (a.Is6() || a != end)
	}
	start := first
	if last.IsValid() && usable(last.Next()) {
		start = last.Next()
	}
	return func(yield func(netip.Addr) bool) {
		for a := start; usable(a) && yield(a); {
			if a = a.Next(); !usable(a) {
				a = first
			}
			if a == start {
				return
			}
		}
	}
}

// lastAddr is the last address of the range.
func lastAddr(r netip.Prefix) netip.Addr {
	b := r.Masked().Addr().AsSlice()
	for i := r.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// release gives back those of the addresses that are owner's.
func release(dir string, ranges []netip.Prefix, owner string, addrs []netip.Addr) error {
	var errs []error
	for _, r := range ranges {
		for _, addr := range addrs {
			if in := rangeDir(dir, r); r.Contains(addr) && owns(in, addr, owner) {
				errs = append(errs, os.Remove(filepath.Join(in, addr.String())))
			}
		}
	}
	return errors.Join(errs...)
}

// releaseIf gives back the addresses of the owners that doomed names.
func releaseIf(dir string, ranges []netip.Prefix, doomed func(owner string) bool) error {
	var errs []error
	for _, r := range ranges {
		taken, err := owners(rangeDir(dir, r))
		if err != nil {
			errs = append(errs, err)
		}
		for addr, o := range taken {
			if !doomed(o) {
				continue
			}
			if err := os.Remove(filepath.Join(rangeDir(dir, r), addr.String())); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// owners are the addresses in use, each with its owner.
func owners(dir string) (map[netip.Addr]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	taken := make(map[netip.Addr]string, len(entries))
	for _, e := range entries {
		addr, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue
		}
		owner, err := os.Readlink(filepath.Join(dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		taken[addr] = owner
	}
	return taken, nil
}

// rangeDir is the range's directory; a node that gets another range starts afresh.
func rangeDir(dir string, r netip.Prefix) string {
	return filepath.Join(dir, "addresses", strings.ReplaceAll(r.String(), "/", "_"))
}

// locked runs f while no other plugin changes the state.
func locked(dir string, f func() error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		return f()
	}
}

// hardware is a link address made from the IP address, so that a pod that gets
// an address again is found under the one its neighbours remember.
func hardware(a netip.Addr) []byte {
	b := a.AsSlice()
	mac := []byte{0x0a, 0x58, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(mac[2:], binary.BigEndian.Uint32(b[len(b)-4:]))
	return mac
}
