package runtimestate

import (
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
)

// A Sandbox is one pod sandbox as the runtime reports it.
type Sandbox struct {
	*cri.PodSandboxStatus
}

// Ready says whether its network and namespaces are there.
func (s Sandbox) Ready() bool { return s.State == cri.PodSandboxState_SANDBOX_READY }

// IPs are its addresses.
func (s Sandbox) IPs() []string {
	if s.Network == nil || s.Network.Ip == "" {
		return nil
	}
	ips := []string{s.Network.Ip}
	for _, a := range s.Network.AdditionalIps {
		ips = append(ips, a.Ip)
	}
	return ips
}

// InSandbox says whether a container belongs to the newest sandbox.
func InSandbox(c *Container, v *Pod) bool {
	return len(v.Sandboxes) > 0 && c.SandboxID == v.Sandboxes[0].Id
}

// SandboxChanged says whether a new sandbox is needed, and its attempt number.
func SandboxChanged(pod *corev1.Pod, v *Pod) (bool, uint32) {
	if len(v.Sandboxes) == 0 {
		return true, 0
	}
	s := v.Sandboxes[0]
	attempt := s.Metadata.GetAttempt() + 1
	ready := 0
	for _, o := range v.Sandboxes {
		if o.Ready() {
			ready++
		}
	}
	switch {
	case ready > 1, !s.Ready():
		return true, attempt
	case s.Linux.GetNamespaces().GetOptions().GetNetwork() != podspec.NetworkMode(pod):
		return true, attempt
	case !pod.Spec.HostNetwork && s.Network.GetIp() == "":
		return true, attempt
	}
	return false, s.Metadata.GetAttempt()
}
