package dns

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"knarr/addons/dns/corefile"
)

// complete answers the first name that a pod's resolver makes of its search list with
// what the resolver would arrive at by the others of the list: one query in place of up
// to five. It is what CoreDNS' autopath does, where a Corefile has the directive. Who
// asked decides on the answer, so that it is made anew each time of what is remembered.
func (s *Server) complete(p *plan, srv *server, key question, client netip.Addr, depth int) *stored {
	a := s.ask(p, srv, key, client, depth)
	if depth > 0 || !a.absent() || !mayComplete(srv, key) {
		return a
	}
	name := key.text()
	for _, next := range s.others(srv.Kubernetes, name, client) {
		to, ok := named(key, next)
		if !ok {
			continue
		}
		m, err := s.resolve(p, to, client, depth+1).unpacked(time.Now())
		if err == nil && m.Rcode == dns.RcodeNameError {
			continue
		}
		if err != nil || m.Rcode != dns.RcodeSuccess {
			return a // the pod goes on by itself, as without this
		}
		m.Question[0].Name = name
		if len(m.Answer) > 0 {
			alias := &dns.CNAME{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: m.Answer[0].Header().Ttl}, Target: next}
			m.Answer = slices.Insert(m.Answer, 0, dns.RR(alias))
		}
		return s.pack(srv, key, m, fromMany)
	}
	return a
}

// mayComplete reports whether an answer that there is no such name depends on the client.
func mayComplete(srv *server, key question) bool {
	return srv.AutoPath != nil && (key.qtype == dns.TypeA || key.qtype == dns.TypeAAAA) && corefile.InZones(key.text(), srv.AutoPath)
}

// others are the names that follow in the search list of the pod at an address, if name is
// the first of them: of its namespace, of all Services, of the cluster, of the node's own
// list, and as it was asked for.
func (s *Server) others(k *corefile.Kubernetes, name string, client netip.Addr) (names []string) {
	namespace, ok := s.namespaceOf(client)
	if !ok {
		return nil
	}
	for _, zone := range k.Zones {
		base, first := strings.CutSuffix(name, "."+namespace+".svc."+zone)
		if !first || base == "" {
			continue
		}
		for _, domain := range append([]string{"svc." + zone, zone}, *s.search.Load()...) {
			names = append(names, base+"."+domain)
		}
		return append(names, base+".")
	}
	return nil
}

// namespaceOf is that of the pod at an address; none at an address that is the node's too,
// or of pods of several namespaces.
func (s *Server) namespaceOf(client netip.Addr) (namespace string, ok bool) {
	pods := s.records.pods.Load()
	if pods == nil || !pods.synced() {
		return "", false
	}
	found, err := pods.ByIndex(byAddress, client.Unmap().WithZone("").String())
	if err != nil {
		return "", false
	}
	for _, o := range found {
		p := o.(*corev1.Pod)
		switch {
		case p.Spec.HostNetwork:
			return "", false
		case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		case namespace != "" && namespace != p.Namespace:
			return "", false
		default:
			namespace = p.Namespace
		}
	}
	return namespace, namespace != ""
}

// searchList is the search list of a resolver configuration.
func searchList(file string) *[]string {
	var domains []string
	if cfg, err := dns.ClientConfigFromFile(file); err == nil {
		for _, d := range cfg.Search {
			if d = dns.CanonicalName(d); d != "." && len(domains) < maxSearch {
				domains = append(domains, d)
			}
		}
	}
	return &domains
}

// maxSearch bounds the names that one query asks elsewhere for; resolv.conf(5) had six.
const maxSearch = 6
