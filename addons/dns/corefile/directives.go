package corefile

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

type reader struct {
	files    Files
	problems []Problem
}

const maxProblems = 50

func (r *reader) problem(d directive, format string, args ...any) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, Problem{d.Position, d.words[0], fmt.Sprintf(format, args...)})
	}
}

// directives are those that are understood.
var directives = map[string]func(*reader, *Server, directive){
	"errors":      func(_ *reader, s *Server, _ directive) { s.Errors = true },
	"log":         func(_ *reader, s *Server, _ directive) { s.Log = true },
	"loadbalance": func(_ *reader, s *Server, _ directive) { s.LoadBalance = true },
	"loop":        func(_ *reader, s *Server, _ directive) { s.Loop = true },
	"reload":      accepted, // changes are always followed
	"health":      (*reader).endpoint,
	"ready":       (*reader).endpoint,
	"prometheus":  (*reader).endpoint,
	"cache":       (*reader).cache,
	"rewrite":     (*reader).rewrite,
	"hosts":       (*reader).hosts,
	"kubernetes":  (*reader).kubernetes,
	"forward":     (*reader).forward,
	"autopath":    (*reader).autopath,
}

func accepted(*reader, *Server, directive) {}

// endpoint reads the address of health, ready or prometheus, which is the node's.
func (r *reader) endpoint(_ *Server, d directive) {
	if d.words[0] == "prometheus" && len(d.words) > 1 && !strings.HasSuffix(d.words[1], ":9153") || d.words[0] != "prometheus" && len(d.words) > 1 {
		r.problem(d, "the address %s is not listened on: port 9153 has /metrics, /health and /ready", d.words[1])
	}
	for _, o := range d.options {
		r.problem(d, "the option %s is not supported", o.words[0])
	}
}

func (r *reader) server(s *Server, all []directive) {
	for _, d := range all {
		read, ok := directives[d.words[0]]
		if !ok {
			r.problem(d, "this directive is not supported and is left out")
			continue
		}
		s.Directives = append(s.Directives, d.words[0])
		read(r, s, d)
	}
	if i := slices.IndexFunc(all, func(d directive) bool { return d.words[0] == "autopath" }); s.AutoPath != nil && (s.Kubernetes == nil || s.Kubernetes.Pods != "verified") {
		r.problem(all[i], "the directive kubernetes with the option \"pods verified\" is wanted in the same server block; without it no name is completed")
		s.AutoPath = nil
	}
}

// autopath reads in which zones the names of pods' search lists are completed.
func (r *reader) autopath(s *Server, d directive) {
	last := len(d.words) - 1
	if d.words[last] != "@kubernetes" {
		r.problem(d, "@kubernetes is wanted at its end; search lists of files are not completed")
		return
	}
	if s.AutoPath = s.Zones; last > 1 {
		s.AutoPath = r.zones(d, d.words[1:last])
	}
}

// number reads a whole number within bounds; what is none is a problem.
func (r *reader) number(d directive, i, least, most int) (int, bool) {
	if i < len(d.words) {
		if n, err := strconv.Atoi(d.words[i]); err == nil && n >= least && n <= most {
			return n, true
		}
	}
	r.problem(d, "a number from %d to %d is wanted", least, most)
	return 0, false
}

func (r *reader) duration(d directive, i int, most time.Duration) (time.Duration, bool) {
	if i < len(d.words) {
		if t, err := time.ParseDuration(d.words[i]); err == nil && t >= 0 && t <= most {
			return t, true
		}
	}
	r.problem(d, "a duration of at most %s is wanted", most)
	return 0, false
}

func (r *reader) zones(d directive, names []string) (zones []string) {
	for _, n := range names {
		if z, ok := zoneOf(n); ok {
			zones = append(zones, z)
		} else {
			r.problem(d, "%q is no zone", n)
		}
	}
	return zones
}

func (r *reader) kubernetes(s *Server, d directive) {
	k := &Kubernetes{Zones: r.zones(d, d.words[1:]), Pods: "disabled", TTL: 5}
	if len(d.words) == 1 {
		k.Zones = s.Zones
	}
	for _, o := range d.options {
		switch o.words[0] {
		case "pods":
			if len(o.words) != 2 || !slices.Contains([]string{"disabled", "insecure", "verified"}, o.words[1]) {
				r.problem(o, "disabled, insecure or verified is wanted")
				continue
			}
			k.Pods = o.words[1]
		case "endpoint_pod_names":
			k.EndpointPodNames = true
		case "namespaces":
			k.Namespaces = o.words[1:]
		case "ttl":
			if n, ok := r.number(o, 1, 0, 3600); ok {
				k.TTL = uint32(n)
			}
		case "fallthrough":
			k.Fall = Fall{true, r.zones(o, o.words[1:])}
		case "ignore":
			if k.IgnoreEmpty = len(o.words) == 2 && o.words[1] == "empty_service"; !k.IgnoreEmpty {
				r.problem(o, "empty_service is wanted")
			}
		default:
			r.problem(d, "the option %s of line %d is not supported", o.words[0], o.Line)
		}
	}
	if k.Domain() == "" {
		r.problem(d, "a zone that is not of reverse names is wanted; the directive is left out")
		return
	}
	s.Kubernetes = k
}

const maxHosts = 20_000

func (r *reader) hosts(s *Server, d directive) {
	h := &Hosts{Zones: s.Zones, Addresses: map[string][]netip.Addr{}, Names: map[netip.Addr][]string{}, TTL: 3600}
	byAddress := true
	var lines []directive
	if len(d.words) > 1 {
		if text, ok := r.files[d.words[1]]; ok {
			lines = hostLines(d.words[1], text)
		} else {
			r.problem(d, "there is no file %q; files are the keys of the ConfigMaps", d.words[1])
		}
		if len(d.words) > 2 {
			h.Zones = r.zones(d, d.words[2:])
		}
	}
	for _, o := range d.options {
		switch o.words[0] {
		case "ttl":
			if n, ok := r.number(o, 1, 1, 65535); ok {
				h.TTL = uint32(n)
			}
		case "fallthrough":
			h.Fall = Fall{true, r.zones(o, o.words[1:])}
		case "no_reverse":
			byAddress = false
		case "reload": // a change of the ConfigMap is followed at once
		default:
			lines = append(lines, o)
		}
	}
	n := 0
	for _, l := range lines {
		addr, err := netip.ParseAddr(l.words[0])
		if err != nil || len(l.words) < 2 {
			r.problem(directive{l.Position, d.words, nil}, "an address and names are wanted, not %q", strings.Join(l.words, " "))
			continue
		}
		for _, name := range l.words[1:] {
			if n++; n > maxHosts {
				r.problem(d, "more than %d names", maxHosts)
				break
			}
			if _, ok := dns.IsDomainName(name); !ok {
				r.problem(directive{l.Position, d.words, nil}, "%q is no name", name)
				continue
			}
			name = dns.CanonicalName(name)
			appendNew(h.Addresses, name, addr.Unmap())
			if byAddress {
				appendNew(h.Names, addr.Unmap(), name)
			}
		}
	}
	s.Hosts = h
}

// maxPerName is how many addresses a name may have, and names an address.
const maxPerName = 100

func appendNew[K, V comparable](m map[K][]V, k K, v V) {
	if have := m[k]; len(have) < maxPerName && !slices.Contains(have, v) {
		m[k] = append(have, v)
	}
}

// hostLines are the lines of a file like /etc/hosts.
func hostLines(file, text string) (lines []directive) {
	for i, l := range strings.Split(text, "\n") {
		l, _, _ = strings.Cut(l, "#")
		if words := strings.Fields(l); len(words) > 0 {
			lines = append(lines, directive{Position: Position{file, i + 1}, words: words})
		}
	}
	return lines
}

// newCache has the defaults of CoreDNS' cache.
func newCache() *Cache {
	return &Cache{Success: time.Hour, Denial: 30 * time.Minute, PrefetchGap: time.Minute, PrefetchPercentage: 10, Servfail: 5 * time.Second, Capacity: 2 * 9984, Stale: time.Hour}
}

func (r *reader) cache(s *Server, d directive) {
	c, rest := newCache(), d.words[1:]
	if len(rest) > 0 {
		if n, err := strconv.Atoi(rest[0]); err == nil {
			if n <= 0 {
				r.problem(d, "the TTL %d is not a positive number", n)
				return
			}
			c.Success, c.Denial = seconds(n), seconds(n)
			rest = rest[1:]
		}
	}
	c.Zones = r.zones(d, rest)
	capacity := map[string]int{"success": 9984, "denial": 9984}
	for _, o := range d.options {
		switch o.words[0] {
		case "success", "denial":
			ttl, least := &c.Success, &c.MinSuccess
			if o.words[0] == "denial" {
				ttl, least = &c.Denial, &c.MinDenial
			}
			if n, ok := r.number(o, 1, 0, 1<<30); ok {
				capacity[o.words[0]] = n
			}
			if len(o.words) > 2 {
				if n, ok := r.number(o, 2, 1, 1<<30); ok {
					*ttl = seconds(n)
				}
			}
			if len(o.words) > 3 {
				if n, ok := r.number(o, 3, 0, 1<<30); ok {
					*least = seconds(n)
				}
			}
		case "prefetch":
			r.prefetch(c, o)
		case "serve_stale":
			c.Stale, c.StaleImmediate = time.Hour, true
			if len(o.words) > 1 {
				if t, ok := r.duration(o, 1, 24*time.Hour); ok {
					c.Stale = t
				}
			}
			if len(o.words) > 2 {
				if c.StaleImmediate = o.words[2] != "verify"; c.StaleImmediate && o.words[2] != "immediate" {
					r.problem(o, "verify or immediate is wanted")
				}
			}
		case "servfail":
			if t, ok := r.duration(o, 1, 5*time.Minute); ok {
				c.Servfail = t
			}
		case "keepttl":
			c.KeepTTL = true
		default:
			r.problem(d, "the option %s of line %d is not supported", o.words[0], o.Line)
		}
	}
	c.Capacity = capacity["success"] + capacity["denial"]
	s.Cache = c
}

func (r *reader) prefetch(c *Cache, o directive) {
	if n, ok := r.number(o, 1, 0, 1<<30); ok {
		c.Prefetch = n
	}
	if len(o.words) > 2 {
		if t, ok := r.duration(o, 2, time.Hour); ok {
			c.PrefetchGap = t
		}
	}
	if len(o.words) > 3 {
		n, err := strconv.Atoi(strings.TrimSuffix(o.words[3], "%"))
		if err != nil || n < 10 || n > 90 || !strings.HasSuffix(o.words[3], "%") {
			r.problem(o, "a percentage from 10%% to 90%% is wanted")
			return
		}
		c.PrefetchPercentage = n
	}
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }
