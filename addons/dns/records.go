package dns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/addons/dns/corefile"
	"knarr/internal/informer"
)

// records are the names of the cluster, read from informers at each query that is
// not remembered.
type records struct {
	services   cache.Indexer
	slices     cache.Indexer
	namespaces cache.Indexer
	pods       atomic.Pointer[podIndex] // nil unless they are asked for
	synced     []cache.InformerSynced
	changes    changes
}

// podIndex are the pods by their addresses.
type podIndex struct {
	cache.Indexer
	synced cache.InformerSynced
}

// byAddress are the indexes by what a Service's, an endpoint's or a pod's addresses are.
const byAddress = "address"

func newRecords(w *informer.Watches) (*records, error) {
	svc := w.Core().V1().Services().Informer()
	eps := w.Discovery().V1().EndpointSlices().Informer()
	ns := w.Core().V1().Namespaces().Informer()
	r := &records{services: svc.GetIndexer(), slices: eps.GetIndexer(), namespaces: ns.GetIndexer()}
	err := errors.Join(
		w.IndexByService(eps),
		w.Index(svc, byAddress, func(o any) ([]string, error) { return o.(*corev1.Service).Spec.ClusterIPs, nil }),
		w.Index(eps, byAddress, func(o any) (addrs []string, _ error) {
			for _, e := range o.(*discoveryv1.EndpointSlice).Endpoints {
				addrs = append(addrs, e.Addresses...)
			}
			return addrs, nil
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("dns: %w", err)
	}
	for _, inf := range []cache.SharedIndexInformer{svc, eps, ns} {
		synced, err := w.Handle(inf, r.changes.handler())
		if err != nil {
			return nil, fmt.Errorf("dns: %w", err)
		}
		r.synced = append(r.synced, synced)
	}
	return r, nil
}

// result is what is known of a name.
type result struct {
	answer, extra []dns.RR
	absent        bool   // NXDOMAIN
	unknown       bool   // not known yet
	outside       string // the name goes on there
	changes       *atomic.Uint64
	change        uint64 // of changes, read before the records
}

// zone is how a server block shows the cluster's names.
type zone struct {
	*records
	*corefile.Kubernetes
	domain string // "cluster.local.", of what is asked for
}

// lookup answers for names of the cluster's zones, and for addresses of it.
func (r *records) lookup(k *corefile.Kubernetes, name string, qtype uint16) (ours bool, res result) {
	z := zone{records: r, Kubernetes: k}
	for _, d := range k.Zones {
		if dns.IsSubDomain(d, name) && len(d) > len(z.domain) {
			z.domain = d
		}
	}
	if z.domain == "" {
		return false, res
	}
	if addr, ok := reverse(name); ok {
		counter := &r.changes.addresses
		change := counter.Load()
		res = z.byAddress(name, addr, qtype)
		res.changes, res.change = counter, change
		return true, res
	}
	labels := dns.SplitDomainName(strings.TrimSuffix(name, z.domain))
	counter := r.changes.of(labels)
	change := counter.Load()
	if len(labels) == 0 {
		res = z.apex(qtype)
	} else {
		res = z.within(name, labels, qtype)
	}
	res.changes, res.change = counter, change
	return true, res
}

// apex answers for the domain itself.
func (z zone) apex(qtype uint16) (res result) {
	switch qtype {
	case dns.TypeSOA:
		res.answer = []dns.RR{z.soa()}
	case dns.TypeNS:
		name := "ns.dns." + z.domain
		res.answer = []dns.RR{&dns.NS{Hdr: z.header(z.domain, dns.TypeNS), Ns: name}}
		res.extra = z.nameserver(name, dns.TypeANY)
	}
	return res
}

// nameserver are the addresses of the Service kube-dns.
func (z zone) nameserver(name string, qtype uint16) []dns.RR {
	o, ok, err := z.services.GetByKey(serviceNamespace + "/" + serviceName)
	if err != nil || !ok {
		return nil
	}
	return z.addresses(name, clusterIPs(o.(*corev1.Service)), qtype)
}

// within answers name, whose labels below the domain are given: SERVICE.NS.svc,
// ENDPOINT.SERVICE.NS.svc, _PORT._PROTO.SERVICE.NS.svc, A-B-C-D.NS.pod.
func (z zone) within(name string, labels []string, qtype uint16) result {
	n := len(labels)
	if n == 1 && labels[0] == "dns-version" {
		if qtype == dns.TypeTXT {
			h := z.header(name, dns.TypeTXT)
			h.Ttl = 28800 // CoreDNS'
			return result{answer: []dns.RR{&dns.TXT{Hdr: h, Txt: []string{"1.1.0"}}}}
		}
		return result{}
	}
	if n == 2 && labels[0] == "ns" && labels[1] == "dns" {
		return result{answer: z.nameserver(name, qtype)}
	}
	switch kind := labels[n-1]; {
	case kind != "svc" && kind != "pod":
		return result{absent: true}
	case n == 1:
		return result{} // an empty non-terminal
	case !z.namespace(labels[n-2]):
		return result{absent: true}
	case n == 2:
		return result{}
	case kind == "pod":
		if n != 3 {
			return result{absent: true}
		}
		return z.pod(name, labels[1], labels[0], qtype)
	}
	return z.service(name, labels[n-2], labels[n-3], labels[:n-3], qtype)
}

func (z zone) namespace(name string) bool {
	_, ok, err := z.namespaces.GetByKey(name)
	return ok && err == nil && (len(z.Namespaces) == 0 || slices.Contains(z.Namespaces, name))
}

// pod answers 10-1-2-3.ns.pod with 10.1.2.3.
func (z zone) pod(name, namespace, label string, qtype uint16) result {
	addr, err := netip.ParseAddr(strings.ReplaceAll(label, "-", "."))
	if err != nil {
		if addr, err = netip.ParseAddr(strings.ReplaceAll(label, "-", ":")); err != nil {
			return result{absent: true}
		}
	}
	switch z.Pods {
	case "insecure":
	case "verified":
		pods := z.pods.Load()
		if pods == nil || !pods.synced() {
			return result{unknown: true}
		}
		found, err := pods.ByIndex(byAddress, addr.String())
		if err != nil || !slices.ContainsFunc(found, func(o any) bool { return o.(*corev1.Pod).Namespace == namespace }) {
			return result{absent: true}
		}
	default:
		return result{absent: true}
	}
	return result{answer: z.address(name, addr, qtype)}
}

func (z zone) service(name, namespace, svcName string, below []string, qtype uint16) result {
	o, ok, err := z.services.GetByKey(namespace + "/" + svcName)
	if err != nil || !ok {
		return result{absent: true}
	}
	svc := o.(*corev1.Service)
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		if len(below) > 0 {
			return result{absent: true}
		}
		return z.external(name, svc.Spec.ExternalName, qtype)
	}
	headless := svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == ""
	switch {
	case z.IgnoreEmpty && !headless && z.empty(svc):
		return result{absent: true}
	case len(below) == 0 && qtype == dns.TypeSRV:
		return z.srv(name, svc, headless, "", "")
	case len(below) == 0 && headless:
		return z.headless(name, svc, "", qtype)
	case len(below) == 0:
		return result{answer: z.addresses(name, clusterIPs(svc), qtype)}
	case len(below) == 2 && strings.HasPrefix(below[0], "_") && strings.HasPrefix(below[1], "_"):
		res := z.srv(name, svc, headless, below[0][1:], below[1][1:])
		if qtype != dns.TypeSRV {
			res.answer, res.extra = nil, nil
		}
		return res
	case len(below) == 1: // also of a Service with an address, as CoreDNS does
		return z.headless(name, svc, below[0], qtype)
	}
	return result{absent: true}
}

func clusterIPs(svc *corev1.Service) []string {
	if len(svc.Spec.ClusterIPs) == 0 {
		return []string{svc.Spec.ClusterIP}
	}
	return svc.Spec.ClusterIPs
}

func (z zone) external(name, to string, qtype uint16) result {
	if addr, err := netip.ParseAddr(to); err == nil {
		return result{answer: z.address(name, addr, qtype)}
	}
	target := dns.CanonicalName(to)
	res := result{answer: []dns.RR{&dns.CNAME{Hdr: z.header(name, dns.TypeCNAME), Target: target}}}
	if qtype == dns.TypeA || qtype == dns.TypeAAAA {
		res.outside = target
	}
	return res
}

func (z zone) addresses(name string, ips []string, qtype uint16) (rrs []dns.RR) {
	for _, ip := range ips {
		if addr, err := netip.ParseAddr(ip); err == nil {
			rrs = append(rrs, z.address(name, addr, qtype)...)
		}
	}
	return rrs
}

// address is an A or AAAA record, when that is what is asked for.
func (z zone) address(name string, addr netip.Addr, qtype uint16) []dns.RR {
	return addressRecord(z.header(name, 0), addr, qtype)
}

func addressRecord(h dns.RR_Header, addr netip.Addr, qtype uint16) []dns.RR {
	switch {
	case addr.Is4() && (qtype == dns.TypeA || qtype == dns.TypeANY):
		h.Rrtype = dns.TypeA
		return []dns.RR{&dns.A{Hdr: h, A: net.IP(addr.AsSlice())}}
	case addr.Is6() && (qtype == dns.TypeAAAA || qtype == dns.TypeANY):
		h.Rrtype = dns.TypeAAAA
		return []dns.RR{&dns.AAAA{Hdr: h, AAAA: net.IP(addr.AsSlice())}}
	}
	return nil
}

func (z zone) header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: z.TTL}
}

// soa says how long an absence may be remembered.
func (z zone) soa() dns.RR {
	return &dns.SOA{
		Hdr: z.header(z.domain, dns.TypeSOA), Ns: "ns.dns." + z.domain, Mbox: "hostmaster." + z.domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: z.TTL,
	}
}
