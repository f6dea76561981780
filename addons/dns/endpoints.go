package dns

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"knarr/internal/informer"
)

// endpoint is one address behind a Service.
type endpoint struct {
	host string // its label
	addr netip.Addr
	port discoveryv1.EndpointPort
}

// maxRecords bounds an answer: more do not fit into a message in any case.
const maxRecords = 4096

var labelOf = strings.NewReplacer(".", "-", ":", "-")

// host is the label of an endpoint's address.
func (z zone) host(e *discoveryv1.Endpoint, addr string) string {
	switch {
	case e.Hostname != nil && *e.Hostname != "":
		return *e.Hostname
	case z.EndpointPodNames && e.TargetRef != nil && e.TargetRef.Name != "" && len(e.TargetRef.Name) < 64:
		return e.TargetRef.Name
	}
	label := labelOf.Replace(addr)
	if strings.HasSuffix(label, "-") {
		return label + "0" // a label ends with a letter or digit
	}
	return label
}

func ready(e *discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

// endpoints calls visit for the endpoints of svc that may be named, with each of
// their ports that matches, or once without a port when match is nil, until
// visit says that it has enough.
func (z zone) endpoints(svc *corev1.Service, match func(*discoveryv1.EndpointPort) bool, visit func(endpoint) bool) {
	found, err := z.slices.ByIndex(informer.ByService, svc.Namespace+"/"+svc.Name)
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
			if !ready(e) && !svc.Spec.PublishNotReadyAddresses {
				continue
			}
			for _, a := range e.Addresses {
				addr, err := netip.ParseAddr(a)
				if err != nil {
					continue
				}
				for _, p := range ports {
					if !visit(endpoint{z.host(e, a), addr, p}) {
						return
					}
				}
			}
		}
	}
}

func (z zone) empty(svc *corev1.Service) bool {
	empty := true
	z.endpoints(svc, nil, func(endpoint) bool {
		empty = false
		return false
	})
	return empty
}

// headless answers with the endpoints themselves, all or those of one host.
func (z zone) headless(name string, svc *corev1.Service, host string, qtype uint16) result {
	seen := map[netip.Addr]bool{}
	res := result{absent: true} // CoreDNS' answer, too, when nothing stands behind the name
	z.endpoints(svc, nil, func(e endpoint) bool {
		if host != "" && !strings.EqualFold(e.host, host) {
			return true
		}
		res.absent = false
		if !seen[e.addr] {
			seen[e.addr] = true
			res.answer = append(res.answer, z.address(name, e.addr, qtype)...)
		}
		return len(seen) < maxRecords // also where none is of that type
	})
	return res
}

// srv answers with ports and the names of what listens there.
func (z zone) srv(name string, svc *corev1.Service, headless bool, port, protocol string) (res result) {
	base := svc.Name + "." + svc.Namespace + ".svc." + z.domain
	match := func(n string, p corev1.Protocol) bool {
		return (port == "" || strings.EqualFold(n, port)) && (protocol == "" || strings.EqualFold(string(p), protocol))
	}
	named := map[string]bool{} // targets whose addresses are in the answer
	add := func(target string, number int32, ips ...netip.Addr) {
		res.answer = append(res.answer, &dns.SRV{Hdr: z.header(name, dns.TypeSRV), Port: uint16(number), Target: target})
		for _, ip := range ips {
			if at := target + ip.String(); !named[at] {
				named[at] = true
				res.extra = append(res.extra, z.address(target, ip, dns.TypeANY)...)
			}
		}
	}
	if headless {
		z.endpoints(svc, func(p *discoveryv1.EndpointPort) bool {
			return p.Port != nil && p.Name != nil && p.Protocol != nil && match(*p.Name, *p.Protocol)
		}, func(e endpoint) bool {
			add(e.host+"."+base, *e.port.Port, e.addr)
			return len(res.answer) < maxRecords
		})
	} else {
		var ips []netip.Addr
		for _, ip := range clusterIPs(svc) {
			if a, err := netip.ParseAddr(ip); err == nil {
				ips = append(ips, a)
			}
		}
		for _, p := range svc.Spec.Ports {
			if match(p.Name, p.Protocol) {
				add(base, p.Port, ips...)
			}
		}
	}
	for _, rr := range res.answer { // equal shares of 100, as CoreDNS gives them
		rr.(*dns.SRV).Weight = uint16(max(100/len(res.answer), 1))
	}
	res.absent = len(res.answer) == 0
	return res
}
