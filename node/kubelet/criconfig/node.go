// Package criconfig makes the configurations of sandboxes and containers that the
// kubelet gives to a container runtime. It reads Pods, Services, the facts of the
// node, and by two interfaces configMaps, secrets and the files of the node that
// containers get mounted; of the disk it reads only files of variables in volumes
// and /sys. It writes nothing.
package criconfig

import (
	"net"

	"k8s.io/apimachinery/pkg/types"
)

// A Node is what configurations depend on of the node.
type Node struct {
	// HostIPs are the node's addresses, the primary first.
	HostIPs []string
	// SeccompDir holds the seccomp profiles of the node.
	SeccompDir string
	// PodLogsDir is where the runtime writes logs.
	PodLogsDir string
	// CgroupParent is the control group of all pods, a slice where systemd has control groups;
	// "-" leaves them to the runtime.
	CgroupParent string
	// CgroupV2 says whether the node has control groups v2 only.
	CgroupV2 bool
	// ClusterDNS are the name servers of the cluster.
	ClusterDNS []net.IP
	// ClusterDomain is the domain of the cluster's names.
	ClusterDomain string
	// ResolvConf reads the node's own resolver configuration; it is empty if the
	// node has none.
	ResolvConf func() (string, error)
	// NoResolver says that pods are to have none of the node's resolvers: resolvConf is "".
	NoResolver bool
	// Memory is the node's memory in bytes.
	Memory int64
	// HugepageSizes are the sizes of huge pages that a container can be given a limit of, as the
	// kernel names them: runtimes such as CRI-O fail it for a limit that no control group has.
	HugepageSizes []string
	// CPUPeriod is the period of quotas in microseconds. Default 100000.
	CPUPeriod int64
	// NoCPUQuota leaves limits of CPU out.
	NoCPUQuota bool
	// ExclusiveCPUs says whether a container has CPUs for itself and so no quota of them;
	// nil: none has.
	ExclusiveCPUs func(pod types.UID, container string) bool
	// SingleOOMKill lets the kernel end one process of a container that runs out of
	// memory instead of all.
	SingleOOMKill bool
	// SELinux says that the kernel confines programs by labels of SELinux.
	SELinux bool
	// SeccompDefault gives containers the runtime's profile unless they ask for another.
	SeccompDefault bool
	// Swap is the node's swap in bytes, SwapControl whether groups can be limited to some
	// of it, and LimitedSwap whether Burstable pods get any.
	Swap                     int64
	SwapControl, LimitedSwap bool
	// Throttling is the part of the way from a container's request to its limit from which
	// it is slowed down, 0 for none; AllocatableMemory is the limit of one without.
	// ReserveMemory lets the kernel keep what containers ask for.
	Throttling        float64
	AllocatableMemory int64
	ReserveMemory     bool
	// OOMScoreFloor is the lowest oom_score_adj that containers can be given.
	OOMScoreFloor int64
}
