package network

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// allocate takes a free address of each range for owner, or none. Addresses
// owner has already are given again.
func allocate(dir string, ranges []netip.Prefix, owner string) ([]netip.Addr, error) {
	var got []netip.Addr
	for _, r := range ranges {
		addr, err := allocateIn(rangeDir(dir, r), r, owner)
		if err != nil {
			return nil, errors.Join(err, release(dir, ranges, owner))
		}
		got = append(got, addr)
	}
	return got, nil
}

func allocateIn(dir string, r netip.Prefix, owner string) (netip.Addr, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return netip.Addr{}, err
	}
	taken, err := owners(dir)
	if err != nil {
		return netip.Addr{}, err
	}
	for addr, o := range taken {
		if o == owner {
			return addr, nil
		}
	}
	var last netip.Addr
	if b, err := os.ReadFile(filepath.Join(dir, lastName)); err == nil {
		last, _ = netip.ParseAddr(string(b)) // unreadable: start over
	}
	addr, ok := nextFree(r, last, taken)
	if !ok {
		return addr, fmt.Errorf("no address is free in %s", r)
	}
	if err := os.Symlink(owner, filepath.Join(dir, addr.String())); err != nil {
		return addr, err
	}
	// Only for fairness: nothing is lost if it is.
	_ = os.WriteFile(filepath.Join(dir, lastName), []byte(addr.String()), 0o600)
	return addr, nil
}

// nextFree gives the first address after last that is not taken, going round
// once. The range's own address, the gateway and IPv4's broadcast are no pod's.
func nextFree(r netip.Prefix, last netip.Addr, taken map[netip.Addr]string) (netip.Addr, bool) {
	first, end := gateway(r).Next(), lastAddr(r)
	usable := func(a netip.Addr) bool {
		return a.IsValid() && r.Contains(a) && !a.Less(first) && (a.Is6() || a != end)
	}
	start := first
	if last.IsValid() && usable(last.Next()) {
		start = last.Next()
	}
	for a := start; ; {
		if _, ok := taken[a]; !ok {
			return a, true
		}
		if a = a.Next(); !usable(a) {
			a = first
		}
		if a == start {
			return netip.Addr{}, false
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

// release gives back what owner has in the ranges.
func release(dir string, ranges []netip.Prefix, owner string) error {
	return releaseIf(dir, ranges, func(o string) bool { return o == owner })
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
