package dns

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// byAddress are the PTR records of an address of the cluster: of the Service that
// has it, else of each Service that it is an endpoint of.
func (z zone) byAddress(name string, addr netip.Addr, qtype uint16) result {
	targets := z.names(addr)
	res := result{absent: len(targets) == 0}
	if qtype != dns.TypePTR && qtype != dns.TypeANY {
		return res
	}
	for _, t := range targets {
		res.answer = append(res.answer, &dns.PTR{Hdr: z.header(name, dns.TypePTR), Ptr: t})
	}
	return res
}

// names are those of an address, each once.
func (z zone) names(addr netip.Addr) (names []string) {
	domain := ".svc." + z.Domain()
	if found, err := z.services.ByIndex(byAddress, addr.String()); err == nil {
		for _, o := range found {
			if s := o.(*corev1.Service); z.namespace(s.Namespace) {
				names = append(names, s.Name+"."+s.Namespace+domain)
			}
		}
	}
	if len(names) > 0 {
		return names
	}
	found, err := z.slices.ByIndex(byAddress, addr.String())
	if err != nil {
		return nil
	}
	seen := map[string]bool{}
	for _, o := range found {
		s := o.(*discoveryv1.EndpointSlice)
		svc := s.Labels[discoveryv1.LabelServiceName]
		if svc == "" || !z.namespace(s.Namespace) {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			for _, a := range e.Addresses {
				at, err := netip.ParseAddr(a)
				if err != nil || at != addr || !ready(e) {
					continue
				}
				name := z.host(e, a) + "." + svc + "." + s.Namespace + domain
				if !seen[name] && len(names) < maxRecords {
					seen[name] = true
					names = append(names, name)
				}
			}
		}
	}
	return names
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
