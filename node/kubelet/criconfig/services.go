package criconfig

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/expansion"
)

// perVariable is what a variable costs a process beside its name and value: "=", the end of
// the text, and where it is.
const perVariable = 10

// serviceEnv is the variables that name services: those of the pod's namespace
// if links is set, and always the API server's. They are taken off the budget as they are
// made: a Service of half a megabyte makes a hundred thousand.
func serviceEnv(all []*corev1.Service, namespace string, links bool, left *expansion.Budget) (out []variable, err error) {
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
	add := func(name, value string) {
		if err == nil {
			err = left.Take(len(name) + len(value) + perVariable)
		}
		if err == nil {
			out = append(out, variable{name, value})
		}
	}
	for _, n := range names {
		s := pick[n]
		if len(s.Spec.Ports) == 0 {
			continue
		}
		prefix := strings.ToUpper(strings.ReplaceAll(n, "-", "_"))
		ip := s.Spec.ClusterIP
		add(prefix+"_SERVICE_HOST", ip)
		add(prefix+"_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port)))
		for _, p := range s.Spec.Ports {
			if p.Name != "" {
				add(prefix+"_SERVICE_PORT_"+strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_")), strconv.Itoa(int(p.Port)))
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
				add(prefix+"_PORT", url)
			}
			base := prefix + "_PORT_" + port + "_" + strings.ToUpper(string(proto))
			for _, v := range []variable{{base, url}, {base + "_PROTO", lower}, {base + "_PORT", port}, {base + "_ADDR", ip}} {
				add(v.name, v.value)
			}
			if err != nil {
				return nil, fmt.Errorf("variables for the Services of namespace %s, which enableServiceLinks: false leaves out: %w", namespace, err)
			}
		}
	}
	return out, nil
}
