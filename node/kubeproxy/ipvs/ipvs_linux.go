// Package ipvs is kube-proxy's mode by the kernel's IP virtual servers, with their ways
// to choose an endpoint. It reads and writes the virtual servers of this network
// namespace, which are this proxy's alone, a link that has the Services' addresses, and
// an nftables table that says who is masqueraded and who may not connect.
//
// A virtual server has one list of endpoints: with externalTrafficPolicy Local, pods and
// this node reach those of this node alone too.
package ipvs

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	moby "github.com/moby/ipvs"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/run"
	"knarr/node/kubeproxy"
	"knarr/node/kubeproxy/conntrack"
)

// Schedulers are the ways to choose an endpoint that kernels have.
var Schedulers = []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh"}

// Timeouts are how long the kernel remembers connections to virtual servers; what is
// zero stays as it is.
type Timeouts struct{ TCP, TCPFin, UDP time.Duration }

// A Dataplane is kube-proxy's, by virtual servers.
type Dataplane struct {
	handle    *moby.Handle
	link      link
	filters   [2]*filter // IPv4, IPv6
	scheduler string
	nodePorts []netip.Prefix
	node      kubeproxy.Rules
	rules     map[cache.ObjectName]kubeproxy.Rules

	mu sync.Mutex
	// have are the virtual servers that the kernel has.
	have map[place]*server
	// ending are endpoints that get no new connection, until theirs are over.
	ending map[ending]time.Time
	timer  *time.Timer
	closed bool
}

// A place is where a virtual server is.
type place struct {
	protocol corev1.Protocol
	at       netip.AddrPort
}

// A server is what a virtual server has.
type server struct {
	affinity  int32
	endpoints map[netip.AddrPort]bool // without those that end
}

type ending struct {
	place
	to netip.AddrPort
}

// How long connections to an endpoint that is gone may last, and how often it is looked
// whether they are over: upstream's.
const maxEnding, lookAtEnding = 15 * time.Minute, time.Minute

// New finds the kernel's virtual servers. name is that of the nftables table and, in
// part, of the link. Connections from outside of the cluster's ranges are masqueraded;
// node ports are at the addresses of this node in nodePorts, or else at those of its
// Node object.
func New(name string, cluster, nodePorts []netip.Prefix, scheduler string, keep Timeouts) (*Dataplane, error) {
	if scheduler == "" {
		scheduler = "rr"
	}
	h, err := connect()
	if err != nil {
		return nil, fmt.Errorf("--proxy-mode ipvs: this kernel has no IP virtual servers (module ip_vs); use --proxy-mode nftables: %w", err)
	}
	if err := setSwitches(); err != nil {
		return nil, err
	}
	if keep != (Timeouts{}) { // zeros are left as they are
		if err := h.SetConfig(&moby.Config{TimeoutTCP: keep.TCP, TimeoutTCPFin: keep.TCPFin, TimeoutUDP: keep.UDP}); err != nil {
			return nil, fmt.Errorf("--proxy-mode ipvs: set timeouts: %w", err)
		}
	}
	d := &Dataplane{
		handle: h, link: link{name: linkName(name)}, scheduler: scheduler, nodePorts: nodePorts, rules: map[cache.ObjectName]kubeproxy.Rules{},
		have: map[place]*server{}, ending: map[ending]time.Time{},
	}
	for i, v6 := range []bool{false, true} {
		d.filters[i] = newFilter(name, v6, cluster)
	}
	return d, nil
}

// Check says why this kernel cannot do it.
func Check() error {
	h, err := connect()
	if err == nil {
		h.Close()
	}
	return err
}

// connect has the kernel load its module. The library does not say when there is none.
func connect() (*moby.Handle, error) {
	h, err := moby.New("")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat("/proc/thread-self/net/ip_vs"); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Apply makes virtual servers, addresses and rules those of the Services. One whose
// virtual server is refused does without it.
func (d *Dataplane) Apply(changes map[cache.ObjectName]kubeproxy.Rules, all bool) (map[cache.ObjectName]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	stale := [2]conntrack.Stale{}
	if all {
		d.rules = map[cache.ObjectName]kubeproxy.Rules{}
		if err := d.read(); err != nil {
			return nil, err
		}
	}
	for name, r := range changes {
		if name == (cache.ObjectName{}) {
			d.node = r
			continue
		}
		for i, v6 := range []bool{false, true} {
			kubeproxy.AddFlows(&stale[i], v6, d.rules[name], r, d.node)
		}
		d.rules[name] = r
		if len(r.Fronts) == 0 {
			delete(d.rules, name)
		}
	}
	want := d.wanted()
	// What is masqueraded or dropped is so before the first packet.
	for _, f := range d.filters {
		if err := f.set(want, all); err != nil {
			return nil, err
		}
	}
	refused := map[cache.ObjectName]error{}
	for p := range d.have {
		if _, stays := want.servers[p]; !stays {
			if err := d.handle.DelService(d.service(p, 0)); err != nil && !errors.Is(err, unix.ESRCH) {
				return nil, fmt.Errorf("delete virtual server %s %s: %w", p.protocol, p.at, err)
			}
			delete(d.have, p)
		}
	}
	if err := d.link.set(want.addresses); err != nil {
		return nil, err
	}
	for p, w := range want.servers {
		if err := d.serve(p, w); err != nil {
			refused[w.owner] = fmt.Errorf("virtual server %s %s: %w", p.protocol, p.at, err)
		}
	}
	for i, v6 := range []bool{false, true} {
		if _, err := conntrack.Forget(v6, stale[i]); err != nil {
			slog.Warn("forget stale UDP flows", "err", err)
		}
	}
	d.look()
	return refused, nil
}

// service is a virtual server in the kernel's words.
func (d *Dataplane) service(p place, affinity int32) *moby.Service {
	s := &moby.Service{Address: p.at.Addr().AsSlice(), Port: p.at.Port(), Protocol: protocolNumbers[p.protocol], SchedName: d.scheduler, AddressFamily: unix.AF_INET, Netmask: 0xffffffff}
	if p.at.Addr().Is6() {
		s.AddressFamily, s.Netmask = unix.AF_INET6, 128
	}
	if affinity > 0 {
		s.Flags, s.Timeout = persistent, uint32(affinity)
	}
	return s
}

// persistent is IP_VS_SVC_F_PERSISTENT.
const persistent = 0x1

var protocolNumbers = map[corev1.Protocol]uint16{corev1.ProtocolTCP: unix.IPPROTO_TCP, corev1.ProtocolUDP: unix.IPPROTO_UDP, corev1.ProtocolSCTP: unix.IPPROTO_SCTP}

func destination(ep netip.AddrPort, weight int) *moby.Destination {
	family := uint16(unix.AF_INET)
	if ep.Addr().Is6() {
		family = unix.AF_INET6
	}
	return &moby.Destination{Address: ep.Addr().AsSlice(), Port: ep.Port(), Weight: weight, AddressFamily: family}
}

// serve makes one virtual server what is wanted.
func (d *Dataplane) serve(p place, w wanted) error {
	s := d.have[p]
	svc := d.service(p, w.affinity)
	switch {
	case s == nil:
		if err := d.handle.NewService(svc); err != nil {
			return fmt.Errorf("make it: %w", err)
		}
		s = &server{affinity: w.affinity, endpoints: map[netip.AddrPort]bool{}}
		d.have[p] = s
	case s.affinity != w.affinity:
		if err := d.handle.UpdateService(svc); err != nil {
			return fmt.Errorf("change its affinity: %w", err)
		}
		s.affinity = w.affinity
	}
	for _, ep := range slices.SortedFunc(maps.Keys(w.endpoints), netip.AddrPort.Compare) {
		if s.endpoints[ep] {
			continue
		}
		var err error
		if e := (ending{p, ep}); !d.ending[e].IsZero() {
			delete(d.ending, e)
			err = d.handle.UpdateDestination(svc, destination(ep, 1))
		} else {
			err = d.handle.NewDestination(svc, destination(ep, 1))
		}
		if err != nil {
			return fmt.Errorf("add endpoint %s: %w", ep, err)
		}
		s.endpoints[ep] = true
	}
	for ep := range s.endpoints {
		if w.endpoints[ep] {
			continue
		}
		// Its connections go on, except datagrams: their senders know of no end.
		err := d.handle.UpdateDestination(svc, destination(ep, 0))
		if p.protocol == corev1.ProtocolUDP && !w.finishing[ep] {
			err = d.handle.DelDestination(svc, destination(ep, 0))
		} else {
			d.ending[ending{p, ep}] = time.Now()
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove endpoint %s: %w", ep, err)
		}
		delete(s.endpoints, ep)
	}
	return nil
}

// look deletes endpoints whose connections are over, and comes again while there are
// others.
func (d *Dataplane) look() {
	for p, eps := range d.endingByPlace() {
		if d.have[p] == nil {
			for _, ep := range eps {
				delete(d.ending, ending{p, ep})
			}
			continue
		}
		svc := d.service(p, 0)
		have, err := d.handle.GetDestinations(svc)
		if err != nil {
			slog.Warn("list the endpoints of a virtual server", "at", p.at, "err", err)
			continue
		}
		busy := map[netip.AddrPort]int{}
		for _, one := range have {
			if a, ok := netip.AddrFromSlice(one.Address); ok {
				busy[netip.AddrPortFrom(a.Unmap(), one.Port)] = one.ActiveConnections + one.InactiveConnections
			}
		}
		for _, ep := range eps {
			e := ending{p, ep}
			if busy[ep] > 0 && time.Since(d.ending[e]) < maxEnding {
				continue
			}
			if err := d.handle.DelDestination(svc, destination(ep, 0)); err != nil && !errors.Is(err, unix.ENOENT) {
				slog.Warn("remove an endpoint of a virtual server", "at", p.at, "endpoint", ep, "err", err)
				continue
			}
			delete(d.ending, e)
		}
	}
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if len(d.ending) > 0 && !d.closed {
		d.timer = run.AfterFunc("kube-proxy: endpoints that end", lookAtEnding, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if !d.closed {
				d.look()
			}
		})
	}
}

func (d *Dataplane) endingByPlace() map[place][]netip.AddrPort {
	by := map[place][]netip.AddrPort{}
	for e := range d.ending {
		by[e.place] = append(by[e.place], e.to)
	}
	return by
}

// read takes over what the kernel has: virtual servers of an earlier run.
func (d *Dataplane) read() error {
	if err := d.link.read(); err != nil {
		return err
	}
	services, err := d.handle.GetServices()
	if err != nil {
		return fmt.Errorf("list virtual servers: %w", err)
	}
	d.have, d.ending = map[place]*server{}, map[ending]time.Time{}
	for _, svc := range services {
		a, ok := netip.AddrFromSlice(svc.Address)
		if !ok || svc.FWMark != 0 {
			continue
		}
		p := place{at: netip.AddrPortFrom(a.Unmap(), svc.Port)}
		for protocol, n := range protocolNumbers {
			if n == svc.Protocol {
				p.protocol = protocol
			}
		}
		if svc.SchedName != d.scheduler {
			if err := d.handle.UpdateService(d.service(p, 0)); err != nil {
				return fmt.Errorf("give virtual server %s scheduler %s: %w", p.at, d.scheduler, err)
			}
		}
		s := &server{affinity: -1, endpoints: map[netip.AddrPort]bool{}} // written anew
		eps, err := d.handle.GetDestinations(svc)
		if err != nil {
			return fmt.Errorf("list the endpoints of virtual server %s: %w", p.at, err)
		}
		for _, ep := range eps {
			if a, ok := netip.AddrFromSlice(ep.Address); ok {
				to := netip.AddrPortFrom(a.Unmap(), ep.Port)
				if ep.Weight == 0 {
					d.ending[ending{p, to}] = time.Now()
				} else {
					s.endpoints[to] = true
				}
			}
		}
		d.have[p] = s
	}
	return nil
}

// Intact says whether the virtual servers, their link and the rules are there.
func (d *Dataplane) Intact() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	services, err := d.handle.GetServices()
	if err != nil {
		return fmt.Errorf("list virtual servers: %w", err)
	}
	if len(services) < len(d.have) {
		return fmt.Errorf("there are %d virtual servers of %d", len(services), len(d.have))
	}
	errs := []error{d.link.intact()}
	for _, f := range d.filters {
		errs = append(errs, f.intact())
	}
	return errors.Join(errs...)
}

// Changed is told of nothing: the kernel has no notices of virtual servers.
func (d *Dataplane) Changed() <-chan struct{} { return nil }

// Close gives back what this process holds; all else stays.
func (d *Dataplane) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.timer != nil {
		d.timer.Stop()
	}
	d.handle.Close()
	return nil
}

// Remove deletes the link, the table, the virtual servers at the addresses of either,
// and gives the switches their usual state.
func Remove(name string) error {
	l := link{name: linkName(name)}
	there, err := l.exists()
	if err != nil || !there {
		return err
	}
	h, err := connect()
	if err != nil {
		return errors.Join(l.remove(), kubeproxy.RemoveTable(name))
	}
	defer h.Close()
	errs := []error{kubeproxy.RemoveTable(name), resetSwitches()}
	services, err := h.GetServices()
	if err != nil {
		errs = append(errs, fmt.Errorf("list virtual servers: %w", err))
	}
	for _, s := range services {
		if a, ok := netip.AddrFromSlice(s.Address); ok && conntrack.LocalAddresses(a.Unmap().Is6())[a.Unmap()] {
			errs = append(errs, h.DelService(s))
		}
	}
	return errors.Join(append(errs, l.remove())...)
}

// linkName is a link's, which has 15 characters at most.
func linkName(table string) string {
	return strings.TrimSuffix(table[:min(len(table), 10)], "-") + "-ipvs"
}
