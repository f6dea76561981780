package dns

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"knarr/addons/dns/corefile"
)

// upstream is a server that is asked, and how it is.
type upstream struct {
	corefile.Upstream
	fails   atomic.Int32 // one after the other
	probing atomic.Bool
	looped  atomic.Bool // it leads back here
}

const (
	probeTime = time.Second
	maxProbe  = 8 * time.Second // between two health checks
)

// setUpstreams are the servers of the configuration and of the node's resolver
// configuration, those that stay as they were.
func (f *forwarder) setUpstreams(resolvConf []string) {
	var was, is []*upstream
	if p := f.upstreams.Load(); p != nil {
		was = *p
	}
	want := slices.Clone(f.cfg.Upstreams)
	if f.cfg.ResolvConf {
		for _, at := range resolvConf {
			want = append(want, corefile.Upstream{Address: at})
		}
	}
	for _, w := range want {
		if w.ServerName == "" {
			w.ServerName = f.cfg.ServerName
		}
		i := slices.IndexFunc(was, func(u *upstream) bool { return u.Upstream == w })
		if i >= 0 && !was[i].looped.Load() { // what led back here is looked at again
			is = append(is, was[i])
			continue
		}
		is = append(is, &upstream{Upstream: w})
	}
	f.upstreams.Store(&is)
}

// detectLoops asks each server for a name that only this process knows.
func (f *forwarder) detectLoops() {
	if !f.probeLoops {
		return
	}
	for _, u := range *f.upstreams.Load() {
		f.wg.Go("DNS: detect a loop", func() { f.detectLoop(u) })
	}
}

func (f *forwarder) detectLoop(u *upstream) {
	name, forget := f.loops.expect(func() {
		if !u.looped.Swap(true) {
			slog.Error("DNS: forwarding loop detected; this server is not asked", "server", u.Address, "zone", f.cfg.From)
			f.loops.found(u.Address, f.cfg.From)
		}
	}, f.cfg.From)
	defer forget()
	if key, ok := named(question{qtype: dns.TypeHINFO, class: dns.ClassINET}, name); ok {
		_, _ = f.exchange(key, u, time.Now().Add(udpTime), udpTime) // what comes back is of no interest
	}
}

func (f *forwarder) down(u *upstream) bool {
	return f.cfg.MaxFails > 0 && int(u.fails.Load()) >= f.cfg.MaxFails
}

// order are the servers in the order in which they are asked: by the policy,
// those that are down last, and never one that leads back here.
func (f *forwarder) order() []*upstream {
	all := slices.Clone(*f.upstreams.Load())
	all = slices.DeleteFunc(all, func(u *upstream) bool { return u.looped.Load() })
	if len(all) < 2 {
		return all
	}
	first := 0
	switch f.cfg.Policy {
	case "random":
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	case "round_robin":
		first = int(f.next.Add(1) % uint32(len(all)))
	}
	all = slices.Concat(all[first:], all[:first])
	slices.SortStableFunc(all, func(a, b *upstream) int { return boolInt(f.down(a)) - boolInt(f.down(b)) })
	if f.down(all[0]) {
		f.metrics.broken.Inc()
	}
	return all
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// note keeps how a server did, and begins to look after one that failed.
func (u *upstream) note(f *forwarder, m *dns.Msg, err error, took time.Duration) {
	if err == nil {
		u.fails.Store(0)
		f.metrics.exchanged(u.Address, m.Rcode, took)
		return
	}
	if !isNetwork(err) || f.cfg.MaxFails == 0 {
		return
	}
	if u.probing.CompareAndSwap(false, true) {
		u.fails.Add(1)
		f.wg.Go("DNS: health check", func() {
			defer u.probing.Store(false)
			f.probe(u)
		})
	}
}

func isNetwork(err error) bool {
	var n net.Error
	return errors.As(err, &n)
}

// probe asks a server that failed until it answers, ever less often.
func (f *forwarder) probe(u *upstream) {
	for wait := f.cfg.HealthCheck; ; wait = min(2*wait, max(maxProbe, f.cfg.HealthCheck)) {
		timer := time.NewTimer(wait)
		select {
		case <-f.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if !slices.Contains(*f.upstreams.Load(), u) {
			return
		}
		key, ok := named(question{qtype: dns.TypeNS, class: dns.ClassINET}, f.cfg.HealthDomain)
		if !ok {
			return
		}
		if _, err := f.exchange(key, u, time.Now().Add(probeTime), probeTime); err == nil {
			u.fails.Store(0)
			if f.probeLoops {
				f.detectLoop(u)
			}
			return
		}
		u.fails.Add(1)
		f.metrics.probeFailures(u.Address)
	}
}

// tlsConfig is that of a server that is asked by TLS.
func (u *upstream) tlsConfig() *tls.Config {
	name := u.ServerName
	if name == "" {
		name, _, _ = net.SplitHostPort(u.Address)
	}
	return &tls.Config{ServerName: name, MinVersion: tls.VersionTLS12}
}

const maxResolvConf = 3 // as in resolv.conf(5)

// resolvServers are the servers of a resolver configuration, without those
// that would lead back here.
func resolvServers(file string, self []netip.AddrPort) (servers []string) {
	cfg, err := dns.ClientConfigFromFile(file)
	if err != nil {
		return nil
	}
	port, err := strconv.ParseUint(cfg.Port, 10, 16)
	if err != nil {
		return nil
	}
	for _, s := range cfg.Servers {
		addr, err := netip.ParseAddr(s)
		at := netip.AddrPortFrom(addr, uint16(port))
		if err != nil || slices.Contains(self, at) || len(servers) == maxResolvConf {
			continue
		}
		servers = append(servers, at.String())
	}
	return servers
}
