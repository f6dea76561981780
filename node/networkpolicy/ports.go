package networkpolicy

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A PortRange is a run of ports of one protocol, the last included.
type PortRange struct {
	Protocol    byte // the number in the IP header
	First, Last uint16
}

// A portName is how a container calls one of its ports.
type portName struct {
	protocol byte
	name     string
}

func protocolNumber(p corev1.Protocol) (byte, error) {
	switch p {
	case "", corev1.ProtocolTCP:
		return syscall.IPPROTO_TCP, nil
	case corev1.ProtocolUDP:
		return syscall.IPPROTO_UDP, nil
	case corev1.ProtocolSCTP:
		return syscall.IPPROTO_SCTP, nil
	}
	return 0, fmt.Errorf("protocol %q is unknown", p)
}

// portsOf sorts a rule's ports into numbers and names. Numbers that overlap or
// touch are joined, as the kernel's interval sets want them.
func portsOf(list []networkingv1.NetworkPolicyPort) (numbers []PortRange, names []portName, err error) {
	for _, p := range list {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		proto, err := protocolNumber(protocol)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case p.Port == nil:
			numbers = append(numbers, PortRange{proto, 0, 65535})
		case p.Port.Type == intstr.String:
			names = append(names, portName{proto, p.Port.StrVal})
		default:
			first, last := p.Port.IntVal, p.Port.IntVal
			if p.EndPort != nil {
				last = *p.EndPort
			}
			if first < 0 || last > 65535 || last < first {
				return nil, nil, fmt.Errorf("ports %d to %d are no range", first, last)
			}
			numbers = append(numbers, PortRange{proto, uint16(first), uint16(last)})
		}
	}
	slices.SortFunc(names, func(a, b portName) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.name, b.name))
	})
	return mergePorts(numbers), slices.Compact(names), nil
}

func mergePorts(list []PortRange) []PortRange {
	slices.SortFunc(list, func(a, b PortRange) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First))
	})
	var all []PortRange
	for _, r := range list {
		if n := len(all) - 1; n >= 0 && all[n].Protocol == r.Protocol && int(r.First) <= int(all[n].Last)+1 {
			all[n].Last = max(all[n].Last, r.Last)
			continue
		}
		all = append(all, r)
	}
	return all
}
