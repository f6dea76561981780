package criconfig

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// HostsFile is the hosts file of a pod; node is the node's own, which is what pods on
// the node's network have.
func HostsFile(pod *corev1.Pod, ips []string, clusterDomain string, node []byte) ([]byte, error) {
	if pod.Spec.HostNetwork {
		return []byte("# Kubernetes-managed hosts file (host network).\n" + string(node) + aliasText(pod.Spec.HostAliases)), nil
	}
	host, domain, err := hostname(pod, clusterDomain)
	if err != nil {
		return nil, err
	}
	return []byte(hostsText(ips, host, domain) + aliasText(pod.Spec.HostAliases)), nil
}

func hostsText(ips []string, host, domain string) string {
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		if domain != "" {
			fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, host, domain, host)
		} else {
			fmt.Fprintf(&b, "%s\t%s\n", ip, host)
		}
	}
	return b.String()
}

func aliasText(aliases []corev1.HostAlias) string {
	if len(aliases) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range aliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.String()
}
