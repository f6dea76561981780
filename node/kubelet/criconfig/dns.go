package criconfig

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
)

// Limits of a resolv.conf, as resolvers have them. glibc 2.28 ends the program where a
// search path is longer than a name may be.
const (
	maxNameservers  = 3
	maxSearchPaths  = 32
	maxSearchPath   = 253
	maxSearchLength = 2048
)

// A Note is something about a pod's configuration that events tell of: of the pod, and
// unless Node is empty of the node.
type Note struct{ Reason, Message, Node string }

// dnsConfig is the resolver configuration of a pod, and what of it is not as the pod or
// the node wants it.
func dnsConfig(n Node, pod *corev1.Pod) (d *cri.DNSConfig, notes []Note, err error) {
	host := func() (*cri.DNSConfig, error) {
		text, err := n.ResolvConf()
		if err != nil {
			return nil, err
		}
		return parseResolvConf(text), nil
	}
	policy := pod.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork {
		policy = corev1.DNSDefault
	}
	if policy != corev1.DNSNone && policy != corev1.DNSDefault && len(n.ClusterDNS) == 0 {
		policy = corev1.DNSDefault
		missing := fmt.Sprintf("kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.", corev1.DNSClusterFirst, corev1.DNSDefault)
		notes = append(notes, Note{"MissingClusterDNS", fmt.Sprintf("pod: %q. %s", podspec.Format(pod), missing), missing})
	}
	switch policy {
	case corev1.DNSNone:
		d = &cri.DNSConfig{}
	case corev1.DNSDefault:
		if d, err = host(); err != nil {
			return nil, nil, err
		}
		if n.NoResolver {
			d = localResolver(n.HostIPs)
		}
	default:
		h, err := host()
		if err != nil {
			return nil, nil, err
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
	if len(d.Servers) > maxNameservers {
		d.Servers = d.Servers[:maxNameservers]
		notes = append(notes, Note{Reason: "DNSConfigForming", Message: "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " + strings.Join(d.Servers, " ")})
	}
	if fit := fitSearches(d.Searches); len(fit) < len(d.Searches) {
		d.Searches = fit
		notes = append(notes, Note{Reason: "DNSConfigForming", Message: "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " + strings.Join(fit, " ")})
	}
	return d, notes, nil
}

// localResolver asks the node's own name servers, of which there are none mostly: names are
// not to be looked up. Empty, the runtime would put the node's own configuration there.
func localResolver(hostIPs []string) *cri.DNSConfig {
	d := &cri.DNSConfig{Searches: []string{"."}}
	for _, ip := range hostIPs {
		server := "127.0.0.1"
		if strings.Contains(ip, ":") {
			server = "::1"
		}
		d.Servers = append(d.Servers, server)
	}
	if len(d.Servers) == 0 {
		d.Servers = []string{"127.0.0.1"}
	}
	return d
}

// fitSearches leaves out the search paths that resolvers have no room for.
func fitSearches(all []string) []string {
	all = slices.Clone(all[:min(len(all), maxSearchPaths)])
	all = slices.DeleteFunc(all, func(s string) bool { return len(s) > maxSearchPath })
	for len(strings.Join(all, " ")) > maxSearchLength {
		all = all[:len(all)-1]
	}
	return all
}

// CheckResolvConf says what of the node's own resolver configuration, of this name, leaves
// pods no room; "" if nothing does.
func CheckResolvConf(file, text string, clusterDomain string) string {
	most := maxSearchPaths
	if clusterDomain != "" {
		most -= 3
	}
	searches := parseResolvConf(text).Searches
	switch {
	case len(searches) > most:
		return fmt.Sprintf("Resolv.conf file '%s' contains search line consisting of more than %d domains!", file, most)
	case slices.ContainsFunc(searches, func(s string) bool { return len(s) > maxSearchPath }):
		return fmt.Sprintf("Resolv.conf file %q contains a search path which length is more than allowed %d chars!", file, maxSearchPath)
	case len(strings.Join(searches, " ")) > maxSearchLength:
		return fmt.Sprintf("Resolv.conf file '%s' contains search line which length is more than allowed %d chars!", file, maxSearchLength)
	}
	return ""
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
				if s != "." { // systemd-resolved writes it where there is none
					d.Searches = append(d.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			d.Options = append(d.Options, f[1:]...)
		}
	}
	return d
}
