package corefile

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const maxUpstreams = 15

func (r *reader) forward(s *Server, d directive) {
	if len(d.words) < 3 {
		r.problem(d, "a zone and the servers to ask are wanted; the directive is left out")
		return
	}
	from, ok := zoneOf(d.words[1])
	if !ok {
		r.problem(d, "%q is no zone; the directive is left out", d.words[1])
		return
	}
	f := Forward{From: from, Policy: "random", MaxFails: 2, HealthCheck: 500 * time.Millisecond, HealthDomain: "."}
	for _, to := range d.words[2:] {
		switch u, ok := upstreamOf(to); {
		case strings.HasPrefix(to, "/"): // any file: the node's resolver configuration
			f.ResolvConf = true
		case !ok:
			r.problem(d, "%q is no address of a server", to)
		case len(f.Upstreams) == maxUpstreams:
			r.problem(d, "more than %d servers", maxUpstreams)
		default:
			f.Upstreams = append(f.Upstreams, u)
		}
	}
	if len(f.Upstreams) == 0 && !f.ResolvConf {
		r.problem(d, "no server to ask; the directive is left out")
		return
	}
	for _, o := range d.options {
		r.forwardOption(&f, d, o)
	}
	s.Forwards = append(s.Forwards, f)
}

func (r *reader) forwardOption(f *Forward, d, o directive) {
	switch o.words[0] {
	case "except":
		f.Except = append(f.Except, r.zones(o, o.words[1:])...)
	case "force_tcp":
		f.ForceTCP = true
	case "prefer_udp": // servers are always asked by UDP first
	case "max_fails":
		if n, ok := r.number(o, 1, 0, 1000); ok {
			f.MaxFails = n
		}
	case "tls":
		if len(o.words) > 1 {
			r.problem(o, "files of certificates cannot be named; the system's authorities are used")
		}
	case "tls_servername":
		if len(o.words) == 2 {
			f.ServerName = o.words[1]
		}
	case "policy":
		if len(o.words) != 2 || !slices.Contains([]string{"random", "round_robin", "sequential"}, o.words[1]) {
			r.problem(o, "random, round_robin or sequential is wanted")
			return
		}
		f.Policy = o.words[1]
	case "health_check":
		r.healthCheck(f, o)
	case "max_concurrent":
		if n, ok := r.number(o, 1, 0, 1<<30); ok {
			f.MaxConcurrent = n
		}
	case "failover":
		for _, name := range o.words[1:] {
			code, ok := dns.StringToRcode[name]
			if !ok || code == dns.RcodeSuccess {
				r.problem(o, "%q is no response code to go on after", name)
				continue
			}
			f.Failover = append(f.Failover, code)
		}
	default:
		r.problem(d, "the option %s of line %d is not supported", o.words[0], o.Line)
	}
}

func (r *reader) healthCheck(f *Forward, o directive) {
	if t, ok := r.duration(o, 1, time.Hour); ok && t >= 100*time.Millisecond {
		f.HealthCheck = t
	}
	for i := 2; i < len(o.words); i++ {
		switch {
		case o.words[i] == "no_rec":
			f.NoRecursion = true
		case o.words[i] == "domain" && i+1 < len(o.words):
			i++
			if z, ok := zoneOf(o.words[i]); ok {
				f.HealthDomain = z
			}
		default:
			r.problem(o, "no_rec, or domain and a name, is wanted")
			return
		}
	}
}

// upstreamOf reads ADDRESS, ADDRESS:PORT and tls://ADDRESS%NAME:PORT.
func upstreamOf(to string) (u Upstream, ok bool) {
	rest, port := strings.TrimPrefix(to, "dns://"), "53"
	if after, tls := strings.CutPrefix(to, "tls://"); tls {
		rest, port, u.TLS = after, "853", true
		if addr, name, named := strings.Cut(after, "%"); named {
			host, p, hasPort := strings.Cut(name, ":")
			u.ServerName, rest = host, addr
			if hasPort {
				port = p
			}
		}
	}
	if a, err := netip.ParseAddr(strings.Trim(rest, "[]")); err == nil {
		rest = net.JoinHostPort(a.String(), port)
	}
	at, err := netip.ParseAddrPort(rest)
	if err != nil || at.Port() == 0 {
		return u, false
	}
	u.Address = at.String()
	return u, true
}
