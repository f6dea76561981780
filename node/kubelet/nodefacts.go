package kubelet

import (
	"os"
	"path/filepath"

	"github.com/opencontainers/selinux/go-selinux"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/features"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/podfile"
)

// maxResolvConf bounds what is read of the node's resolver configuration.
const maxResolvConf = 10 << 20

// nodeConfig is what the configurations of pods depend on of this node.
func (k *Kubelet) nodeConfig() criconfig.Node {
	s := k.cfg.Settings
	n := criconfig.Node{
		SeccompDir: filepath.Join(k.cfg.RootDir, "seccomp"), PodLogsDir: k.cfg.PodLogsDir,
		CgroupParent: k.cgroupParent(), CgroupV2: k.cgroups.V2(),
		ClusterDNS: k.cfg.ClusterDNS, ClusterDomain: k.cfg.ClusterDomain, ResolvConf: k.resolvConf, NoResolver: k.cfg.ResolvConf == "",
		Memory: k.machine.memory, OOMScoreFloor: k.oomFloor,
		CPUPeriod: s.CPUCFSQuotaPeriod.Microseconds(), NoCPUQuota: !*s.CPUCFSQuota,
		SingleOOMKill: s.SingleProcessOOMKill != nil && *s.SingleProcessOOMKill, SeccompDefault: *s.SeccompDefault, SELinux: selinux.GetEnabled(),
	}
	if n.CgroupV2 {
		n.Swap, n.SwapControl, n.LimitedSwap = k.machine.swap, k.cgroups.SwapControl(k.cgroupParent()), s.MemorySwap.SwapBehavior == configuration.LimitedSwap
		if features.Set(s.FeatureGates).Enabled("MemoryQoS") {
			memory := k.allocatable()[corev1.ResourceMemory]
			n.Throttling, n.AllocatableMemory = *s.MemoryThrottlingFactor, memory.Value()
			n.ReserveMemory = s.MemoryReservationPolicy == configuration.TieredReservation
		}
	}
	if k.cpus != nil && features.Set(s.FeatureGates).Enabled("DisableCPUQuotaWithExclusiveCPUs") {
		n.ExclusiveCPUs = func(pod types.UID, container string) bool { return !k.cpus.Exclusive(pod, container).IsEmpty() }
	}
	if k.cgroups.HasHugepages() {
		n.HugepageSizes = criconfig.HugepageSizes(k.machineHugepages())
	}
	for _, ip := range k.cfg.NodeIPs {
		n.HostIPs = append(n.HostIPs, ip.String())
	}
	return n
}

// resolvConf is the node's resolver configuration, "" if it has none.
func (k *Kubelet) resolvConf() (string, error) {
	if k.cfg.ResolvConf == "" {
		return "", nil
	}
	b, err := podfile.ReadHost(k.cfg.ResolvConf, maxResolvConf)
	if os.IsNotExist(err) {
		return "", nil
	}
	return string(b), err
}

// serviceList is what the variables of services are made of.
func (k *Kubelet) serviceList() []*corev1.Service {
	all, err := k.services.List(labels.Everything())
	if err != nil {
		return nil
	}
	return all
}

func (k *Kubelet) podFiles() podFiles { return podFiles{k.volumes, k.cfg.ClusterDomain} }

func (k *Kubelet) podLogDir(pod *corev1.Pod) string {
	return criconfig.PodLogDir(k.cfg.PodLogsDir, pod)
}

func (k *Kubelet) podCgroup(pod *corev1.Pod) string {
	return criconfig.PodCgroup(k.cgroupParent(), pod)
}
