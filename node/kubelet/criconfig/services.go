package criconfig

import (
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// serviceEnv is the variables that name services: those of the pod's namespace
// if links is set, and always the API server's.
func serviceEnv(all []*corev1.Service, namespace string, links bool) (out []variable) {
	pick := map[string]*corev1.Service{}
	for _, s := range all {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		master := s.Namespace == corev1.NamespaceDefault && s.Name == "kubernetes"
		switch {
		case s.Namespace == namespace && (links || master):
			pick[s.Name] = s
		case master:
			if _, ok := pick[s.Name]; !ok {
				pick[s.Name] = s
			}
		}
	}
	names := make([]string, 0, len(pick))
	for n := range pick {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		s := pick[n]
		if len(s.Spec.Ports) == 0 {
			continue
		}
		prefix := strings.ToUpper(strings.ReplaceAll(n, "-", "_"))
		ip := s.Spec.ClusterIP
		out = append(out, variable{prefix + "_SERVICE_HOST", ip}, variable{prefix + "_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port))})
		for _, p := range s.Spec.Ports {
			if p.Name != "" {
				out = append(out, variable{prefix + "_SERVICE_PORT_" + strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_")), strconv.Itoa(int(p.Port))})
			}
		}
		for i, p := range s.Spec.Ports {
			proto := p.Protocol
			if proto == "" {
				proto = corev1.ProtocolTCP
			}
			port, lower := strconv.Itoa(int(p.Port)), strings.ToLower(string(proto))
			url := lower + "://" + net.JoinHostPort(ip, port)
			if i == 0 {
				out = append(out, variable{prefix + "_PORT", url})
			}
			base := prefix + "_PORT_" + port + "_" + strings.ToUpper(string(proto))
			out = append(out, variable{base, url}, variable{base + "_PROTO", lower}, variable{base + "_PORT", port}, variable{base + "_ADDR", ip})
		}
	}
	return out
}
