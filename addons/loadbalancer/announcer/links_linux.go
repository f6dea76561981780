package announcer

import (
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// A responder answers for addresses of one family on one link.
type responder interface {
	// set are the addresses that it answers for.
	set(addrs map[netip.Addr]bool) error
	// announce tells the network that an address is here.
	announce(a netip.Addr) error
	close()
}

// links are this node's, where addresses are answered for.
type links struct {
	space     func(func() error) error
	contested chan<- netip.Addr
	wait      run.Group
	closed    atomic.Bool

	mu     sync.Mutex
	open   map[where]responder
	have   map[where]map[netip.Addr]bool
	logged map[where]string // the last error of each, so that it is logged once
}

// A where is a link and a family.
type where struct {
	name string
	v6   bool
}

func newLinks(space func(func() error) error, contested chan<- netip.Addr) *links {
	return &links{space: space, contested: contested, open: map[where]responder{}, have: map[where]map[netip.Addr]bool{}, logged: map[where]string{}}
}

// set makes the addresses that are answered for these, each on the named links, or on
// those that its network is at.
func (l *links) set(mine map[netip.Addr][]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	want := map[where]map[netip.Addr]bool{}
	if len(mine) > 0 {
		if err := l.space(func() error { return l.choose(mine, want) }); err != nil {
			slog.Warn("find the links of load balancers' addresses", "err", err)
			return
		}
	}
	for at, r := range l.open {
		if want[at] == nil {
			r.close()
			delete(l.open, at)
			delete(l.have, at)
		}
	}
	for at, addrs := range want {
		l.settle(at, addrs)
	}
}

// settle makes one link's addresses these, and announces the new ones.
func (l *links) settle(at where, addrs map[netip.Addr]bool) {
	r := l.open[at]
	if r == nil {
		err := l.space(func() (err error) {
			ifi, err := net.InterfaceByName(at.name)
			if err != nil {
				return err
			}
			open := openARP
			if at.v6 {
				open = openNDP
			}
			r, err = open(ifi, l.contested)
			return err
		})
		if err != nil {
			if l.logged[at] != err.Error() {
				l.logged[at] = err.Error()
				slog.Warn("answer for load balancers' addresses, trying again", "interface", at.name, "err", err)
			}
			return
		}
		delete(l.logged, at)
		l.open[at] = r
	}
	if err := r.set(addrs); err != nil { // the link went, most likely
		slog.Warn("answer for load balancers' addresses, trying again", "interface", at.name, "err", err)
		r.close()
		delete(l.open, at)
		delete(l.have, at)
		return
	}
	for a := range addrs {
		if !l.have[at][a] {
			l.tell(r, a)
		}
	}
	l.have[at] = maps.Clone(addrs)
}

// The times at which a new address is announced again: others may miss the first.
var repeat = []time.Duration{200 * time.Millisecond, time.Second, 3 * time.Second}

func (l *links) tell(r responder, a netip.Addr) {
	if err := r.announce(a); err != nil {
		slog.Debug("announce a load balancer's address", "address", a, "err", err)
	}
	for _, d := range repeat {
		run.AfterFunc("announce an address again", d, func() {
			if !l.closed.Load() && l.answers(r, a) {
				_ = r.announce(a) // as good as it gets
			}
		})
	}
}

func (l *links) answers(r responder, a netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, open := range l.open {
		if open == r {
			return l.have[at][a]
		}
	}
	return false
}

// again announces an address that somebody else has claimed.
func (l *links) again(a netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, r := range l.open {
		if l.have[at][a] {
			_ = r.announce(a) // it is answered for all the same
		}
	}
}

// askAgain has a contested address looked at once more.
func (l *links) askAgain(a netip.Addr) {
	if !l.closed.Load() {
		select {
		case l.contested <- a:
		default:
		}
	}
}

func (l *links) close() {
	l.closed.Store(true)
	l.set(nil)
	l.wait.Wait()
}

// choose finds the links of each address: those that were named and are there, or whose
// network has the address, or that of the default route.
func (l *links) choose(mine map[netip.Addr][]string, want map[where]map[netip.Addr]bool) error {
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	networks := map[string][]netip.Prefix{}
	for i := range all {
		if all[i].Flags&(net.FlagUp|net.FlagBroadcast) != net.FlagUp|net.FlagBroadcast || len(all[i].HardwareAddr) != 6 {
			continue
		}
		addrs, err := all[i].Addrs()
		if err != nil {
			continue // it went
		}
		networks[all[i].Name] = nil
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				networks[all[i].Name] = append(networks[all[i].Name], p)
			}
		}
	}
	fallback := map[bool]string{}
	for a, named := range mine {
		v6 := a.Is6()
		var on []string
		for name, of := range networks {
			if len(named) > 0 && slices.Contains(named, name) ||
				len(named) == 0 && slices.ContainsFunc(of, func(p netip.Prefix) bool { return p.Contains(a) && p.Bits() < p.Addr().BitLen() }) {
				on = append(on, name)
			}
		}
		if len(on) == 0 && len(named) == 0 {
			if _, asked := fallback[v6]; !asked {
				fallback[v6] = defaultLink(v6)
			}
			if _, usable := networks[fallback[v6]]; usable {
				on = append(on, fallback[v6])
			}
		}
		for _, name := range on {
			at := where{name, v6}
			if want[at] == nil {
				want[at] = map[netip.Addr]bool{}
			}
			want[at][a] = true
		}
	}
	return nil
}

// defaultLink is the link of the default route; empty if there is none.
func defaultLink(v6 bool) string {
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	routes, err := netlink.RouteList(nil, family)
	if err != nil {
		return ""
	}
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsUnspecified() && r.Dst.Mask != nil && isZero(r.Dst.Mask) {
			if ifi, err := net.InterfaceByIndex(r.LinkIndex); err == nil {
				return ifi.Name
			}
		}
	}
	return ""
}

func isZero(m net.IPMask) bool {
	ones, _ := m.Size()
	return ones == 0
}
