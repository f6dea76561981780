package corefile

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A Server is one server block: what is done with the queries for its zones.
type Server struct {
	Zones       []string // canonical: "example.org."
	Log         bool     // each query
	Errors      bool     // each failure
	LoadBalance bool
	Loop        bool
	Cache       *Cache // nil: answers of elsewhere are not remembered
	Rewrites    []Rewrite
	Hosts       *Hosts
	Kubernetes  *Kubernetes
	Forwards    []Forward
	AutoPath    []string // zones in which pods' search lists are completed

	// Directives are the names of all, in their order.
	Directives []string
}

// Fall says for which names the next directive is asked when there is no answer.
type Fall struct {
	On    bool
	Zones []string // empty: all
}

// Through reports whether it is for a name.
func (f Fall) Through(name string) bool {
	return f.On && (len(f.Zones) == 0 || InZones(name, f.Zones))
}

// InZones reports whether a canonical name is in one of some zones.
func InZones(name string, zones []string) bool {
	return slices.ContainsFunc(zones, func(z string) bool { return dns.IsSubDomain(z, name) })
}

// Kubernetes are names of the cluster.
type Kubernetes struct {
	Zones            []string
	Pods             string // disabled, insecure or verified
	EndpointPodNames bool
	Namespaces       []string // empty: all
	IgnoreEmpty      bool     // a Service without endpoints is absent
	TTL              uint32
	Fall             Fall
}

// Domain is the first zone of names, in which PTR records end.
func (k *Kubernetes) Domain() string {
	for _, z := range k.Zones {
		if !reverse(z) {
			return z
		}
	}
	return ""
}

func reverse(zone string) bool {
	return dns.IsSubDomain("in-addr.arpa.", zone) || dns.IsSubDomain("ip6.arpa.", zone)
}

// Hosts are names given by themselves.
type Hosts struct {
	Zones     []string
	Addresses map[string][]netip.Addr
	Names     map[netip.Addr][]string
	TTL       uint32
	Fall      Fall
}

// Forward are the servers that are asked for names of a zone.
type Forward struct {
	From          string
	Except        []string
	Upstreams     []Upstream
	ResolvConf    bool // those of the node's resolver configuration too
	ForceTCP      bool
	ServerName    string // of certificates
	Policy        string // random, round_robin or sequential
	MaxFails      int    // until a server counts as down; 0 is never
	HealthCheck   time.Duration
	HealthDomain  string
	NoRecursion   bool // of health checks
	MaxConcurrent int  // 0 is the server's own bound
	Failover      []int
}

// An Upstream is a server to ask.
type Upstream struct {
	Address    string // with its port
	TLS        bool
	ServerName string
}

// Cache is how long answers of elsewhere are remembered.
type Cache struct {
	Zones              []string
	Success, Denial    time.Duration // at most
	MinSuccess         time.Duration
	MinDenial          time.Duration
	Capacity           int // answers
	Prefetch           int // queries that make a name popular; 0 is off
	PrefetchGap        time.Duration
	PrefetchPercentage int
	Stale              time.Duration // 0 is never
	StaleImmediate     bool
	Servfail           time.Duration
	KeepTTL            bool
}

// A Rewrite changes the name of a question, and those of its answer back.
type Rewrite struct {
	Continue bool
	Match    string // exact, prefix, suffix, substring or regex
	From, To string
	Regex    *regexp.Regexp
	Auto     bool // names of the answer are changed back
	Answers  []AnswerRule
}

// An AnswerRule changes the names of records, or those in their values.
type AnswerRule struct {
	Value bool
	From  *regexp.Regexp
	To    string
}

// Read gives the server blocks of a file. Problems are what was left out; an
// error is one of the text as a whole, of which then nothing can be used.
func Read(files Files, name string) (servers []Server, problems []Problem, err error) {
	blocks, problems, err := parse(files, name)
	if err != nil {
		return nil, nil, err
	}
	r := &reader{files: files, problems: problems}
	seen := map[string]bool{}
	for _, b := range blocks {
		s := Server{}
		for _, key := range b.keys {
			zones, err := zonesOf(key)
			if err != nil {
				r.problem(directive{Position: b.Position, words: b.keys}, "%s", err)
			}
			for _, z := range zones {
				if seen[z] {
					r.problem(directive{Position: b.Position, words: b.keys}, "the zone %s has a server block already", z)
					continue
				}
				seen[z] = true
				s.Zones = append(s.Zones, z)
			}
		}
		if len(s.Zones) > 0 {
			r.server(&s, b.directives)
			servers = append(servers, s)
		}
	}
	return servers, r.problems, nil
}

// zonesOf reads the key of a server block: a zone or a range of addresses,
// perhaps with a scheme before and a port after it.
func zonesOf(key string) ([]string, error) {
	key = strings.TrimSuffix(key, ",")
	scheme, rest, ok := strings.Cut(key, "://")
	if !ok {
		scheme, rest = "dns", key
	}
	if scheme != "dns" {
		return nil, fmt.Errorf("%s: queries are answered by UDP and TCP only", scheme)
	}
	if z, ok := reverseZone(rest); ok {
		return []string{z}, nil
	}
	if host, port, ok := strings.Cut(rest, ":"); ok {
		if port != "53" {
			return nil, fmt.Errorf("port %s: queries arrive at port 53 only", port)
		}
		rest = host
	}
	if rest == "" {
		rest = "."
	}
	if z, ok := reverseZone(rest); ok {
		return []string{z}, nil
	}
	z, ok := zoneOf(rest)
	if !ok {
		return nil, fmt.Errorf("%q is no zone", rest)
	}
	return []string{z}, nil
}

// zoneOf is a name as a canonical zone.
func zoneOf(name string) (string, bool) {
	if z, ok := reverseZone(name); ok {
		return z, true
	}
	_, ok := dns.IsDomainName(name)
	return dns.CanonicalName(name), ok && name != ""
}

// reverseZone is the zone of a range of addresses that ends at a label.
func reverseZone(cidr string) (string, bool) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return "", false
	}
	bits, labels := 8, 4
	if p.Addr().Is6() {
		bits, labels = 4, 32
	}
	if p.Bits()%bits != 0 {
		return "", false
	}
	name, err := dns.ReverseAddr(p.Masked().Addr().String())
	if err != nil {
		return "", false
	}
	split := dns.SplitDomainName(name)
	return dns.Fqdn(strings.Join(split[labels-p.Bits()/bits:], ".")), true
}
