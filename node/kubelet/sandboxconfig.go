package kubelet

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hostNameMax is the longest host name the kernel takes.
const hostNameMax = 63

// podLogDir is where the runtime writes the logs of a pod's containers.
func (k *Kubelet) podLogDir(pod *corev1.Pod) string {
	return filepath.Join(k.cfg.PodLogsDir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

func podLabels(pod *corev1.Pod) map[string]string {
	l := maps.Clone(pod.Labels)
	if l == nil {
		l = map[string]string{}
	}
	l[labelPodName], l[labelPodNamespace], l[labelPodUID] = pod.Name, pod.Namespace, string(pod.UID)
	return l
}

func (k *Kubelet) sandboxConfig(pod *corev1.Pod, attempt uint32) (*cri.PodSandboxConfig, error) {
	if u := pod.Spec.HostUsers; u != nil && !*u {
		return nil, errors.New("user namespaces are not supported on this node")
	}
	dns, err := k.podDNS(pod)
	if err != nil {
		return nil, err
	}
	c := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Labels:       podLabels(pod),
		Annotations:  pod.Annotations,
		DnsConfig:    dns,
		LogDirectory: k.podLogDir(pod),
		Linux:        k.linuxSandbox(pod),
	}
	if !pod.Spec.HostNetwork {
		host, domain, err := k.podHostname(pod)
		if err != nil {
			return nil, err
		}
		if pod.Spec.SetHostnameAsFQDN != nil && *pod.Spec.SetHostnameAsFQDN && pod.Spec.HostnameOverride == nil && domain != "" {
			host = host + "." + domain
			if len(host) > hostNameMax {
				return nil, fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)", host, hostNameMax, len(host))
			}
		}
		c.Hostname = host
	}
	ports := pod.Spec.Containers
	for i := range pod.Spec.InitContainers {
		if isSidecar(&pod.Spec.InitContainers[i]) {
			ports = append(ports[:len(ports):len(ports)], pod.Spec.InitContainers[i])
		}
	}
	for _, ct := range ports {
		for _, p := range ct.Ports {
			m := &cri.PortMapping{HostIp: p.HostIP, HostPort: p.HostPort, ContainerPort: p.ContainerPort}
			switch p.Protocol {
			case corev1.ProtocolUDP:
				m.Protocol = cri.Protocol_UDP
			case corev1.ProtocolSCTP:
				m.Protocol = cri.Protocol_SCTP
			}
			c.PortMappings = append(c.PortMappings, m)
		}
	}
	return c, nil
}

func (k *Kubelet) linuxSandbox(pod *corev1.Pod) *cri.LinuxPodSandboxConfig {
	sec := &cri.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod),
		Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
	}
	eachContainer(pod, func(c *corev1.Container, _ containerKind) {
		if c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged {
			sec.Privileged = true
		}
	})
	l := &cri.LinuxPodSandboxConfig{
		CgroupParent:    k.podCgroup(pod),
		SecurityContext: sec,
		Sysctls:         map[string]string{},
		Resources:       k.podResources(pod),
	}
	l.Overhead = overheadResources(pod)
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			l.Sysctls[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
		}
		if sc.RunAsUser != nil {
			sec.RunAsUser = &cri.Int64Value{Value: *sc.RunAsUser}
		}
		if sc.RunAsGroup != nil {
			sec.RunAsGroup = &cri.Int64Value{Value: *sc.RunAsGroup}
			if sec.RunAsUser == nil { // the runtime refuses a group without a user
				sec.RunAsGroup = nil
			}
		}
		sec.SupplementalGroups = podGroups(pod)
		sec.SupplementalGroupsPolicy = groupsPolicy(sc)
		sec.SelinuxOptions = selinux(sc.SELinuxOptions)
	}
	return l
}

func podGroups(pod *corev1.Pod) (groups []int64) {
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return nil
	}
	if sc.FSGroup != nil {
		groups = append(groups, *sc.FSGroup)
	}
	return append(groups, sc.SupplementalGroups...)
}

func groupsPolicy(sc *corev1.PodSecurityContext) cri.SupplementalGroupsPolicy {
	if sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return cri.SupplementalGroupsPolicy_Strict
	}
	return cri.SupplementalGroupsPolicy_Merge
}

func selinux(o *corev1.SELinuxOptions) *cri.SELinuxOption {
	if o == nil {
		return nil
	}
	return &cri.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func namespaces(pod *corev1.Pod) *cri.NamespaceOption {
	n := &cri.NamespaceOption{Network: netMode(pod), Pid: cri.NamespaceMode_CONTAINER}
	switch {
	case pod.Spec.HostPID:
		n.Pid = cri.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		n.Pid = cri.NamespaceMode_POD
	}
	if pod.Spec.HostIPC {
		n.Ipc = cri.NamespaceMode_NODE
	}
	return n
}

// podHostname is the host name a pod's containers see and its domain, if any.
func (k *Kubelet) podHostname(pod *corev1.Pod) (host, domain string, err error) {
	if o := pod.Spec.HostnameOverride; o != nil {
		if msgs := validation.IsDNS1123Subdomain(*o); len(msgs) > 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", *o, strings.Join(msgs, ";"))
		}
		return *o, "", nil
	}
	host = pod.Name
	if pod.Spec.Hostname != "" {
		if msgs := validation.IsDNS1123Label(pod.Spec.Hostname); len(msgs) > 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", pod.Spec.Hostname, strings.Join(msgs, ";"))
		}
		host = pod.Spec.Hostname
	}
	if len(host) > hostNameMax {
		host = strings.TrimRight(host[:hostNameMax], "-.")
	}
	if pod.Spec.Subdomain != "" {
		domain = pod.Spec.Subdomain + "." + pod.Namespace + ".svc." + k.cfg.ClusterDomain
	}
	return host, domain, nil
}

// Limits of a resolv.conf, as the field has them.
const (
	maxNameservers  = 3
	maxSearchPaths  = 32
	maxSearchLength = 2048
)

// podDNS is the resolver configuration of a pod.
func (k *Kubelet) podDNS(pod *corev1.Pod) (*cri.DNSConfig, error) {
	host := func() (*cri.DNSConfig, error) {
		if k.cfg.ResolvConf == "" {
			return &cri.DNSConfig{}, nil
		}
		b, err := os.ReadFile(k.cfg.ResolvConf)
		if os.IsNotExist(err) {
			return &cri.DNSConfig{}, nil
		}
		if err != nil {
			return nil, err
		}
		return parseResolvConf(string(b)), nil
	}
	policy := pod.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork || policy == corev1.DNSClusterFirst && len(k.cfg.ClusterDNS) == 0 ||
		policy == corev1.DNSClusterFirstWithHostNet && len(k.cfg.ClusterDNS) == 0 {
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
		for _, ip := range k.cfg.ClusterDNS {
			d.Servers = append(d.Servers, ip.String())
		}
		if dom := k.cfg.ClusterDomain; dom != "" {
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
