package criconfig

import (
	"fmt"
	"maps"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/crilabels"
	"knarr/node/kubelet/podspec"
)

// Sandbox is the configuration of a pod's sandbox, and what events tell of it; users is the
// pod's user namespace, nil for the node's.
func Sandbox(n Node, pod *corev1.Pod, attempt uint32, users *cri.UserNamespace) (*cri.PodSandboxConfig, []Note, error) {
	dns, notes, err := dnsConfig(n, pod)
	if err != nil {
		return nil, nil, err
	}
	c := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Labels:       podLabels(pod),
		Annotations:  pod.Annotations,
		DnsConfig:    dns,
		LogDirectory: PodLogDir(n.PodLogsDir, pod),
		Linux:        linuxSandboxConfig(n, pod, users),
	}
	if !pod.Spec.HostNetwork {
		host, domain, err := hostname(pod, n.ClusterDomain)
		if err != nil {
			return nil, nil, err
		}
		if pod.Spec.SetHostnameAsFQDN != nil && *pod.Spec.SetHostnameAsFQDN && pod.Spec.HostnameOverride == nil && domain != "" {
			host = host + "." + domain
			if len(host) > hostNameMax {
				return nil, nil, fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)", host, hostNameMax, len(host))
			}
		}
		c.Hostname = host
	}
	c.PortMappings = portMappings(pod)
	return c, notes, nil
}

func podLabels(pod *corev1.Pod) map[string]string {
	l := maps.Clone(pod.Labels)
	if l == nil {
		l = map[string]string{}
	}
	l[crilabels.PodName], l[crilabels.PodNamespace], l[crilabels.PodUID] = pod.Name, pod.Namespace, string(pod.UID)
	return l
}

func linuxSandboxConfig(n Node, pod *corev1.Pod, users *cri.UserNamespace) *cri.LinuxPodSandboxConfig {
	sec := &cri.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod, users),
		Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
	}
	podspec.EachContainer(pod, func(c *corev1.Container, _ podspec.ContainerKind) {
		if c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged {
			sec.Privileged = true
		}
	})
	l := &cri.LinuxPodSandboxConfig{
		CgroupParent:    PodCgroup(n.CgroupParent, pod),
		SecurityContext: sec,
		Sysctls:         map[string]string{},
		Resources:       n.sandboxResources(pod),
	}
	l.Overhead = n.overheadResources(pod)
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			l.Sysctls[sysctl.NormalizeName(s.Name)] = s.Value
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

// portMappings are the ports of the containers that stay while the pod runs.
func portMappings(pod *corev1.Pod) (out []*cri.PortMapping) {
	ports := pod.Spec.Containers
	for i := range pod.Spec.InitContainers {
		if podspec.IsSidecar(&pod.Spec.InitContainers[i]) {
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
			out = append(out, m)
		}
	}
	return out
}

// PodLogDir is where the runtime writes the logs of a pod's containers.
func PodLogDir(dir string, pod *corev1.Pod) string {
	return filepath.Join(dir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}
