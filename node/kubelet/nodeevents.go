package kubelet

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/criconfig"
)

// tellNodeChanges tells, of the Node as the API server has it, that others want no pods on
// it, or want some again, and once that the machine has started anew since.
func (k *Kubelet) tellNodeChanges(have *corev1.Node) {
	if is := have.Spec.Unschedulable; k.unschedulable.Swap(is) != is {
		reason := "NodeSchedulable"
		if is {
			reason = "NodeNotSchedulable"
		}
		k.events.Event(k.nodeRef(), corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", k.cfg.NodeName, reason))
	}
	if was := have.Status.NodeInfo.BootID; was != "" && was != k.machine.bootID && !k.rebooted.Swap(true) {
		k.events.Event(k.nodeRef(), corev1.EventTypeWarning, "Rebooted", fmt.Sprintf("Node %s has been rebooted, boot id: %s", k.cfg.NodeName, k.machine.bootID))
	}
}

// resolvConfPeriod is how often the node's resolver configuration is looked at.
const resolvConfPeriod = 30 * time.Second

// tellHost tells what about the machine concerns pods: at the start how it keeps their
// memory and groups, and whenever that changes what its resolver configuration has no room
// for.
func (k *Kubelet) tellHost(ctx context.Context) {
	warn := func(reason, message string) { k.events.Event(k.nodeRef(), corev1.EventTypeWarning, reason, message) }
	if !k.cgroups.V2() && k.cfg.CgroupParent != "-" {
		warn("CgroupV1", "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1")
	}
	if k.machine.swap > 0 && !k.volumes.NoSwap() {
		warn("PossibleMemoryBackedVolumesOnDisk", "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be swapped to disk and should no longer be considered secure.")
	}
	if k.cfg.ResolvConf == "" {
		return
	}
	for last := ""; ; {
		text, err := k.resolvConf()
		wrong := criconfig.CheckResolvConf(k.cfg.ResolvConf, text, k.cfg.ClusterDomain)
		if err != nil {
			wrong = err.Error()
		}
		if wrong != last && wrong != "" {
			warn("CheckLimitsForResolvConf", wrong)
		}
		last = wrong
		if !sleep(ctx, resolvConfPeriod) {
			return
		}
	}
}
