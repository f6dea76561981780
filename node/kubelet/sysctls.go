package kubelet

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"
)

// safeSysctls are those that do not reach out of a pod.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes",
	"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}

// admitSysctls refuses sysctls that reach out of a pod, but those that the node allows.
func admitSysctls(pod *corev1.Pod, unsafe []string) *rejection {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := sysctl.NormalizeName(s.Name)
		net, ipc := strings.HasPrefix(name, "net."), strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") || name == "kernel.sem" || strings.HasPrefix(name, "fs.mqueue.")
		if pod.Spec.HostNetwork && net || pod.Spec.HostIPC && ipc {
			return &rejection{"SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowed with host %s enabled", s.Name, map[bool]string{true: "net", false: "ipc"}[net])}
		}
		ok := slices.Contains(safeSysctls, name) || slices.ContainsFunc(unsafe, func(u string) bool {
			u = sysctl.NormalizeName(u)
			if p, glob := strings.CutSuffix(u, "*"); glob {
				return strings.HasPrefix(name, p)
			}
			return name == u
		})
		if !ok {
			return &rejection{"SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowlisted", s.Name)}
		}
	}
	return nil
}
