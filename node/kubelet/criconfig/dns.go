package criconfig

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of a resolv.conf, as resolvers have them.
const (
	maxNameservers  = 3
	maxSearchPaths  = 32
	maxSearchLength = 2048
)

// dnsConfig is the resolver configuration of a pod.
func dnsConfig(n Node, pod *corev1.Pod) (*cri.DNSConfig, error) {
	host := func() (*cri.DNSConfig, error) {
		text, err := n.ResolvConf()
		if err != nil {
			return nil, err
		}
		return parseResolvConf(text), nil
	}
	policy := pod.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork || policy == corev1.DNSClusterFirst && len(n.ClusterDNS) == 0 ||
		policy == corev1.DNSClusterFirstWithHostNet && len(n.ClusterDNS) == 0 {
		policy = corev1.DNSDefault
	}
	var d *cri.DNSConfig
	switch policy {
	case corev1.DNSNone:
		d = &cri.DNSConfig{}
	case corev1.DNSDefault:
		var err error
		if d, err = host(); err != nil {
			return nil, err
		}
	default:
		h, err := host()
		if err != nil {
			return nil, err
		}
		d = &cri.DNSConfig{Options: []string{"ndots:5"}}
		for _, ip := range n.ClusterDNS {
			d.Servers = append(d.Servers, ip.String())
		}
		if dom := n.ClusterDomain; dom != "" {
			d.Searches = []string{pod.Namespace + ".svc." + dom, "svc." + dom, dom}
		}
		d.Searches = unique(append(d.Searches, h.Searches...))
	}
	if c := pod.Spec.DNSConfig; c != nil {
		d.Servers = unique(append(d.Servers, c.Nameservers...))
		d.Searches = unique(append(d.Searches, c.Searches...))
		d.Options = mergeOptions(d.Options, c.Options)
	}
	d.Servers = d.Servers[:min(len(d.Servers), maxNameservers)]
	d.Searches = d.Searches[:min(len(d.Searches), maxSearchPaths)]
	for len(strings.Join(d.Searches, " ")) > maxSearchLength {
		d.Searches = d.Searches[:len(d.Searches)-1]
	}
	return d, nil
}

func unique(in []string) (out []string) {
	seen := map[string]bool{}
	for _, s := range in {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// mergeOptions lets the pod's resolver options override those before.
func mergeOptions(base []string, over []corev1.PodDNSConfigOption) (out []string) {
	named := map[string]bool{}
	for _, o := range over {
		named[o.Name] = true
	}
	for _, b := range base {
		if name, _, _ := strings.Cut(b, ":"); !named[name] {
			out = append(out, b)
		}
	}
	for _, o := range over {
		if o.Value != nil && *o.Value != "" {
			out = append(out, o.Name+":"+*o.Value)
		} else {
			out = append(out, o.Name)
		}
	}
	return unique(out)
}

func parseResolvConf(text string) *cri.DNSConfig {
	d := &cri.DNSConfig{}
	for line := range strings.Lines(text) {
		if i := strings.IndexAny(line, "#;"); i >= 0 {
			line = line[:i]
		}
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			d.Servers = append(d.Servers, f[1])
		case "search":
			d.Searches = nil
			for _, s := range f[1:] {
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				d.Searches = append(d.Searches, s)
			}
		case "options":
			d.Options = append(d.Options, f[1:]...)
		}
	}
	return d
}
