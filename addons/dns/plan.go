package dns

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"

	"knarr/addons/dns/corefile"
)

// builtin is the configuration without a ConfigMap, but for the domain.
const builtin = `.:53 {
	errors
	health
	ready
	kubernetes DOMAIN in-addr.arpa ip6.arpa {
		pods insecure
		fallthrough in-addr.arpa ip6.arpa
		ttl TTL
	}
	import /etc/coredns/custom/*.override
	prometheus :9153
	forward . /etc/resolv.conf {
		policy round_robin
	}
	cache 30 {
		prefetch 10
		serve_stale 1h verify
	}
	loop
	reload
	loadbalance
}
import /etc/coredns/custom/*.server
`

// A server is a server block as it answers for one of its zones.
type server struct {
	corefile.Server
	zone     string
	forwards []*forwarder
	counters *counters
}

// plan is a configuration at work.
type plan struct {
	zones    map[string]*server
	forwards []*forwarder
	memory   *memory
	static   atomic.Uint64 // what never changes while the plan is the one
	verified bool          // pods must be known

	stop context.CancelFunc
	wg   work
}

// newPlan puts server blocks to work. ctx ends what it starts; close waits for it.
func (s *Server) newPlan(servers []corefile.Server) *plan {
	ctx, stop := context.WithCancel(context.Background())
	p := &plan{zones: map[string]*server{}, stop: stop}
	bytes := 0
	for _, c := range servers {
		if c.Cache != nil {
			bytes = max(bytes, min(c.Cache.Capacity, maxMemoryBytes/answerBytes)*answerBytes)
		}
	}
	if bytes >= 2*9984*answerBytes {
		bytes = memoryBytes // CoreDNS' default, in bytes
	}
	p.memory = newMemory(max(bytes, 1<<20))
	known := false
	for _, c := range servers {
		known = known || c.Kubernetes != nil
	}
	for _, c := range servers {
		p.verified = p.verified || c.Kubernetes != nil && c.Kubernetes.Pods == "verified"
		var forwards []*forwarder
		for _, f := range c.Forwards {
			if len(p.forwards) == 255 {
				break
			}
			fw := newForwarder(ctx, &p.wg, s, f, c.Cache, p.memory)
			p.forwards = append(p.forwards, fw)
			fw.id = uint8(len(p.forwards))
			fw.probeLoops = c.Loop
			forwards = append(forwards, fw)
		}
		for _, zone := range c.Zones {
			srv := &server{Server: c, zone: zone, forwards: forwards, counters: s.metrics.server(zone)}
			p.zones[zone] = srv
			for _, f := range forwards {
				f.server = srv // of several zones the last: what is counted is counted there
			}
		}
	}
	if !known { // the names of the cluster are never lost by a mistake
		p.zones[s.cfg.Domain] = &server{
			Server: corefile.Server{Kubernetes: &corefile.Kubernetes{Zones: []string{s.cfg.Domain}, Pods: "insecure", TTL: s.cfg.TTL}, LoadBalance: true, Directives: []string{"kubernetes", "loadbalance"}},
			zone:   s.cfg.Domain, counters: s.metrics.server(s.cfg.Domain),
		}
	}
	return p
}

func (p *plan) close() {
	p.stop()
	p.wg.wait()
}

// server is the one of the longest zone that a name is in; nil for none.
func (p *plan) server(name string) *server {
	for at, end := 0, false; !end; at, end = dns.NextLabel(name, at) {
		if s := p.zones[name[at:]]; s != nil {
			return s
		}
	}
	return p.zones["."]
}

// answersFor is the part of a forward's zone and exceptions. Pure.
func answersFor(f *corefile.Forward, name string) bool {
	return dns.IsSubDomain(f.From, name) && !corefile.InZones(name, f.Except)
}

// read reads texts; with no Corefile, what is built in counts.
func (s *Server) read(files corefile.Files) ([]corefile.Server, []corefile.Problem, error) {
	if _, ok := files[corefileName]; !ok {
		text := strings.NewReplacer("DOMAIN", s.cfg.Domain, "TTL", strconv.Itoa(int(s.cfg.TTL))).Replace(builtin)
		files[corefileName] = text
	}
	return corefile.Read(files, corefileName)
}
