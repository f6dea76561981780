package dns

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// records are the names of the cluster, read from informers at each query.
type records struct {
	domain     string // "cluster.local."
	ttl        uint32
	services   cache.Indexer
	slices     cache.Indexer
	namespaces cache.Indexer
	synced     []cache.InformerSynced
}

const (
	byService = "service"
	byAddress = "address"
)

func newRecords(domain string, ttl uint32, f informers.SharedInformerFactory) (*records, error) {
	svc := f.Core().V1().Services().Informer()
	eps := f.Discovery().V1().EndpointSlices().Informer()
	ns := f.Core().V1().Namespaces().Informer()
	r := &records{domain: domain, ttl: ttl, services: svc.GetIndexer(), slices: eps.GetIndexer(), namespaces: ns.GetIndexer(),
		synced: []cache.InformerSynced{svc.HasSynced, eps.HasSynced, ns.HasSynced}}
	if err := svc.AddIndexers(cache.Indexers{byAddress: func(o any) ([]string, error) {
		return o.(*corev1.Service).Spec.ClusterIPs, nil
	}}); err != nil {
		return nil, fmt.Errorf("dns: %w", err)
	}
	err := eps.AddIndexers(cache.Indexers{
		byService: func(o any) ([]string, error) {
			s := o.(*discoveryv1.EndpointSlice)
			return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
		},
		byAddress: func(o any) (addrs []string, _ error) {
			for _, e := range o.(*discoveryv1.EndpointSlice).Endpoints {
				addrs = append(addrs, e.Addresses...)
			}
			return addrs, nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("dns: %w", err)
	}
	return r, nil
}

// result is what is known of a name.
type result struct {
	answer, extra []dns.RR
	absent        bool   // NXDOMAIN
	outside       string // the name goes on there
}

// lookup answers for names of the cluster, and for addresses of it.
func (r *records) lookup(name string, qtype uint16) (ours bool, res result) {
	if rest, ok := strings.CutSuffix(name, "."+r.domain); ok {
		return true, r.within(name, dns.SplitDomainName(rest), qtype)
	}
	if name == r.domain {
		if qtype == dns.TypeSOA {
			res.answer = []dns.RR{r.soa()}
		}
		return true, res
	}
	if addr, ok := reverse(name); ok {
		found := r.byAddress(name, addr)
		if qtype != dns.TypePTR && len(found) > 0 {
			return true, result{}
		}
		return len(found) > 0, result{answer: found}
	}
	return false, res
}

// within answers name, whose labels below the domain are given: SERVICE.NS.svc,
// ENDPOINT.SERVICE.NS.svc, _PORT._PROTO.SERVICE.NS.svc, A-B-C-D.NS.pod.
func (r *records) within(name string, labels []string, qtype uint16) result {
	n := len(labels)
	if n == 1 && labels[0] == "dns-version" {
		if qtype == dns.TypeTXT {
			return result{answer: []dns.RR{&dns.TXT{Hdr: r.header(name, dns.TypeTXT), Txt: []string{"1.1.0"}}}}
		}
		return result{}
	}
	switch kind := labels[n-1]; {
	case kind != "svc" && kind != "pod":
		return result{absent: true}
	case n == 1:
		return result{} // an empty non-terminal
	case !r.namespace(labels[n-2]):
		return result{absent: true}
	case n == 2:
		return result{}
	case kind == "pod":
		if n != 3 {
			return result{absent: true}
		}
		return r.pod(name, labels[0], qtype)
	}
	return r.service(name, labels[n-2], labels[n-3], labels[:n-3], qtype)
}

func (r *records) namespace(name string) bool {
	_, ok, err := r.namespaces.GetByKey(name)
	return ok && err == nil
}

// pod answers 10-1-2-3.ns.pod with 10.1.2.3.
func (r *records) pod(name, label string, qtype uint16) result {
	text := strings.ReplaceAll(label, "-", ".")
	addr, err := netip.ParseAddr(text)
	if err != nil {
		if addr, err = netip.ParseAddr(strings.ReplaceAll(label, "-", ":")); err != nil {
			return result{absent: true}
		}
	}
	return result{answer: r.address(name, addr, qtype)}
}

func (r *records) service(name, namespace, svcName string, below []string, qtype uint16) result {
	o, ok, err := r.services.GetByKey(namespace + "/" + svcName)
	if err != nil || !ok {
		return result{absent: true}
	}
	svc := o.(*corev1.Service)
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		if len(below) > 0 {
			return result{absent: true}
		}
		return r.external(name, svc.Spec.ExternalName, qtype)
	}
	headless := svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == ""
	switch {
	case len(below) == 0 && qtype == dns.TypeSRV:
		return r.srv(name, svc, headless, "", "")
	case len(below) == 0 && headless:
		return r.headless(name, svc, "", qtype)
	case len(below) == 0:
		return result{answer: r.addresses(name, svc.Spec.ClusterIPs, qtype)}
	case len(below) == 2 && strings.HasPrefix(below[0], "_") && strings.HasPrefix(below[1], "_"):
		res := r.srv(name, svc, headless, below[0][1:], below[1][1:])
		if qtype != dns.TypeSRV {
			res.answer, res.extra = nil, nil
		}
		return res
	case len(below) == 1 && headless:
		return r.headless(name, svc, below[0], qtype)
	}
	return result{absent: true}
}

func (r *records) external(name, to string, qtype uint16) result {
	if addr, err := netip.ParseAddr(to); err == nil {
		return result{answer: r.address(name, addr, qtype)}
	}
	target := dns.CanonicalName(to)
	res := result{answer: []dns.RR{&dns.CNAME{Hdr: r.header(name, dns.TypeCNAME), Target: target}}}
	if qtype == dns.TypeA || qtype == dns.TypeAAAA {
		res.outside = target
	}
	return res
}

// endpoint is one address behind a headless Service.
type endpoint struct {
	host string // its label
	addr netip.Addr
	port discoveryv1.EndpointPort
}

// maxRecords bounds an answer: more do not fit into a message in any case.
const maxRecords = 4096

var labelOf = strings.NewReplacer(".", "-", ":", "-")

// endpoints calls visit for the endpoints of svc that may be named, with each of
// their ports that matches, or once without a port when match is nil, until
// visit says that it has enough.
func (r *records) endpoints(svc *corev1.Service, match func(*discoveryv1.EndpointPort) bool, visit func(endpoint) bool) {
	found, err := r.slices.ByIndex(byService, svc.Namespace+"/"+svc.Name)
	if err != nil {
		return
	}
	for _, o := range found {
		s := o.(*discoveryv1.EndpointSlice)
		ports := []discoveryv1.EndpointPort{{}}
		if match != nil {
			ports = nil
			for i := range s.Ports {
				if match(&s.Ports[i]) {
					ports = append(ports, s.Ports[i])
				}
			}
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if e.Conditions.Ready != nil && !*e.Conditions.Ready && !svc.Spec.PublishNotReadyAddresses {
				continue
			}
			for _, a := range e.Addresses {
				addr, err := netip.ParseAddr(a)
				if err != nil {
					continue
				}
				host := labelOf.Replace(a)
				if e.Hostname != nil && *e.Hostname != "" {
					host = *e.Hostname
				}
				for _, p := range ports {
					if !visit(endpoint{host, addr, p}) {
						return
					}
				}
			}
		}
	}
}

// headless answers with the endpoints themselves, all or those of one host.
func (r *records) headless(name string, svc *corev1.Service, host string, qtype uint16) result {
	seen := map[netip.Addr]bool{}
	res := result{absent: host != ""}
	r.endpoints(svc, nil, func(e endpoint) bool {
		if host != "" && !strings.EqualFold(e.host, host) {
			return true
		}
		res.absent = false
		if !seen[e.addr] {
			seen[e.addr] = true
			res.answer = append(res.answer, r.address(name, e.addr, qtype)...)
		}
		return len(res.answer) < maxRecords
	})
	if host == "" && len(seen) == 0 {
		res.absent = true // CoreDNS' answer: nothing stands behind the name
	}
	return res
}

// srv answers with ports and the names of what listens there.
func (r *records) srv(name string, svc *corev1.Service, headless bool, port, protocol string) (res result) {
	base := svc.Name + "." + svc.Namespace + ".svc." + r.domain
	match := func(n string, p corev1.Protocol) bool {
		return (port == "" || strings.EqualFold(n, port)) && (protocol == "" || strings.EqualFold(string(p), protocol))
	}
	add := func(target string, number int32, addr netip.Addr, weight uint16) {
		res.answer = append(res.answer, &dns.SRV{Hdr: r.header(name, dns.TypeSRV), Weight: weight, Port: uint16(number), Target: target})
		if addr.IsValid() {
			qtype := dns.TypeA
			if addr.Is6() {
				qtype = dns.TypeAAAA
			}
			res.extra = append(res.extra, r.address(target, addr, qtype)...)
		}
	}
	if !headless {
		for _, p := range svc.Spec.Ports {
			if match(p.Name, p.Protocol) {
				addr, _ := netip.ParseAddr(svc.Spec.ClusterIP)
				add(base, p.Port, addr, 100)
			}
		}
	} else {
		r.endpoints(svc, func(p *discoveryv1.EndpointPort) bool {
			return p.Port != nil && p.Name != nil && p.Protocol != nil && match(*p.Name, *p.Protocol)
		}, func(e endpoint) bool {
			add(e.host+"."+base, *e.port.Port, e.addr, 100)
			return len(res.answer) < maxRecords
		})
	}
	res.absent = len(res.answer) == 0
	return res
}

func (r *records) addresses(name string, ips []string, qtype uint16) (rrs []dns.RR) {
	for _, ip := range ips {
		if addr, err := netip.ParseAddr(ip); err == nil {
			rrs = append(rrs, r.address(name, addr, qtype)...)
		}
	}
	return rrs
}

// address is an A or AAAA record, when that is what is asked for.
func (r *records) address(name string, addr netip.Addr, qtype uint16) []dns.RR {
	switch {
	case addr.Is4() && (qtype == dns.TypeA || qtype == dns.TypeANY):
		return []dns.RR{&dns.A{Hdr: r.header(name, dns.TypeA), A: net.IP(addr.AsSlice())}}
	case addr.Is6() && (qtype == dns.TypeAAAA || qtype == dns.TypeANY):
		return []dns.RR{&dns.AAAA{Hdr: r.header(name, dns.TypeAAAA), AAAA: net.IP(addr.AsSlice())}}
	}
	return nil
}

// byAddress are the PTR records of an address of the cluster.
func (r *records) byAddress(name string, addr netip.Addr) (rrs []dns.RR) {
	ptr := func(target string) {
		rrs = append(rrs, &dns.PTR{Hdr: r.header(name, dns.TypePTR), Ptr: target})
	}
	if found, err := r.services.ByIndex(byAddress, addr.String()); err == nil {
		for _, o := range found {
			s := o.(*corev1.Service)
			ptr(s.Name + "." + s.Namespace + ".svc." + r.domain)
		}
	}
	if len(rrs) > 0 {
		return rrs
	}
	found, err := r.slices.ByIndex(byAddress, addr.String())
	if err != nil {
		return nil
	}
	seen := map[string]bool{}
	for _, o := range found {
		s := o.(*discoveryv1.EndpointSlice)
		svcName := s.Labels[discoveryv1.LabelServiceName]
		if svcName == "" {
			continue
		}
		for _, e := range s.Endpoints {
			if e.Hostname == nil || *e.Hostname == "" || len(e.Addresses) == 0 || e.Addresses[0] != addr.String() {
				continue
			}
			target := *e.Hostname + "." + svcName + "." + s.Namespace + ".svc." + r.domain
			if !seen[target] {
				seen[target] = true
				ptr(target)
			}
		}
	}
	return rrs
}

// reverse reads 3.2.1.10.in-addr.arpa. and its like for IPv6.
func reverse(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		l := strings.Split(rest, ".")
		if len(l) != 4 {
			return netip.Addr{}, false
		}
		addr, err := netip.ParseAddr(l[3] + "." + l[2] + "." + l[1] + "." + l[0])
		return addr, err == nil
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa.")
	if l := strings.Split(rest, "."); ok && len(l) == 32 {
		var b strings.Builder
		for i := 31; i >= 0; i-- {
			b.WriteString(l[i])
			if i%4 == 0 && i > 0 {
				b.WriteByte(':')
			}
		}
		addr, err := netip.ParseAddr(b.String())
		return addr, err == nil
	}
	return netip.Addr{}, false
}

func (r *records) header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: r.ttl}
}

// soa says how long an absence may be remembered.
func (r *records) soa() dns.RR {
	return &dns.SOA{
		Hdr: r.header(r.domain, dns.TypeSOA), Ns: "ns.dns." + r.domain, Mbox: "hostmaster." + r.domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: r.ttl,
	}
}
