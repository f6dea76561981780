package configuration

import (
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"
)

// Default gives every setting that was not said its value: upstream's, but that swap
// and control groups of version 1 are taken as they are, images are pulled at once,
// and nothing that the node does itself is held back by a clock. Only podPidsLimit stays
// unsaid: it is by how many processes the machine can have (nodeallocatable.Config.PodPIDs).
func Default(s *Settings) {
	s.TypeMeta = metav1.TypeMeta{Kind: "KubeletConfiguration", APIVersion: kubeletconfig.SchemeGroupVersion.String()}
	defaultServer(s)
	defaultPods(s)
	defaultResources(s)
	or(&s.SyncFrequency.Duration, time.Minute)
	or(&s.FileCheckFrequency.Duration, 20*time.Second)
	or(&s.HTTPCheckFrequency.Duration, 20*time.Second)
	set(&s.RegistryPullQPS, 0)
	or(&s.RegistryBurst, 10)
	set(&s.EventRecordQPS, 0)
	or(&s.EventBurst, 100)
	set(&s.KubeAPIQPS, 0)
	or(&s.KubeAPIBurst, 100)
	or(&s.ContentType, "application/vnd.kubernetes.protobuf")
	if s.NodeStatusReportFrequency.Duration == 0 {
		s.NodeStatusReportFrequency = s.NodeStatusUpdateFrequency
	}
	or(&s.NodeStatusReportFrequency.Duration, 5*time.Minute)
	or(&s.NodeStatusUpdateFrequency.Duration, 10*time.Second)
	or(&s.NodeLeaseDurationSeconds, 40)
	set(&s.NodeStatusMaxImages, 50)
	set(&s.RegisterNode, true)
	set(&s.EnableControllerAttachDetach, true)
	set(&s.MakeIPTablesUtilChains, false)
	set(&s.IPTablesMasqueradeBit, 14)
	set(&s.IPTablesDropBit, 15)
	or(&s.HairpinMode, kubeletconfig.PromiscuousBridge)
	or(&s.MaxOpenFiles, 1000000)
	set(&s.OOMScoreAdj, -999)
	or(&s.ConfigMapAndSecretChangeDetectionStrategy, kubeletconfig.WatchChangeDetectionStrategy)
	or(&s.VolumeStatsAggPeriod.Duration, time.Minute)
}

func or[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func set[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func defaultServer(s *Settings) {
	set(&s.EnableServer, true)
	or(&s.Address, "0.0.0.0")
	or(&s.Port, 10250)
	set(&s.HealthzPort, 10248)
	or(&s.HealthzBindAddress, "127.0.0.1")
	set(&s.Authentication.Anonymous.Enabled, false)
	set(&s.Authentication.Webhook.Enabled, true)
	or(&s.Authentication.Webhook.CacheTTL.Duration, 2*time.Minute)
	or(&s.Authorization.Mode, kubeletconfig.KubeletAuthorizationModeWebhook)
	or(&s.Authorization.Webhook.CacheAuthorizedTTL.Duration, 5*time.Minute)
	or(&s.Authorization.Webhook.CacheUnauthorizedTTL.Duration, 30*time.Second)
	set(&s.EnableDebuggingHandlers, true)
	set(&s.EnableProfilingHandler, true)
	set(&s.EnableDebugFlagsHandler, true)
	set(&s.EnableSystemLogHandler, true)
	set(&s.EnableSystemLogQuery, false)
	or(&s.StreamingConnectionIdleTimeout.Duration, 4*time.Hour)
}

func defaultPods(s *Settings) {
	or(&s.ContainerRuntimeEndpoint, "unix:///run/containerd/containerd.sock")
	or(&s.RuntimeRequestTimeout.Duration, 2*time.Minute)
	or(&s.PodLogsDir, "/var/log/pods")
	or(&s.MaxPods, 110)
	if s.PodPidsLimit != nil && *s.PodPidsLimit < 0 {
		s.PodPidsLimit = new(int64(-1))
	}
	set(&s.ResolverConfig, "/etc/resolv.conf")
	set(&s.SeccompDefault, false)
	if s.SerializeImagePulls == nil {
		s.SerializeImagePulls = new(false)
	}
	or(&s.ImagePullCredentialsVerificationPolicy, kubeletconfig.NeverVerifyPreloadedImages)
	or(&s.ImageMinimumGCAge.Duration, 2*time.Minute)
	set(&s.ImageGCHighThresholdPercent, 85)
	set(&s.ImageGCLowThresholdPercent, min(80, *s.ImageGCHighThresholdPercent-1))
	or(&s.ContainerLogMaxSize, "10Mi")
	set(&s.ContainerLogMaxFiles, 5)
	set(&s.ContainerLogMaxWorkers, 1)
	set(&s.ContainerLogMonitorInterval, metav1.Duration{Duration: 10 * time.Second})
	set(&s.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: 5 * time.Minute})
	or(&s.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
}

// defaultQuotaPeriod is that in which a container may use its CPUs.
const defaultQuotaPeriod = 100 * time.Millisecond

func defaultResources(s *Settings) {
	set(&s.CgroupsPerQOS, true)
	or(&s.CgroupDriver, Cgroupfs)
	set(&s.FailCgroupV1, false)
	set(&s.FailSwapOn, false)
	or(&s.CPUManagerPolicy, "none")
	or(&s.CPUManagerReconcilePeriod.Duration, 10*time.Second)
	or(&s.MemoryManagerPolicy, kubeletconfig.NoneMemoryManagerPolicy)
	or(&s.TopologyManagerPolicy, kubeletconfig.NoneTopologyManagerPolicy)
	or(&s.TopologyManagerScope, kubeletconfig.ContainerTopologyManagerScope)
	reserveCPUs(s)
	set(&s.CPUCFSQuota, true)
	set(&s.CPUCFSQuotaPeriod, metav1.Duration{Duration: defaultQuotaPeriod})
	or(&s.EvictionPressureTransitionPeriod.Duration, 5*time.Minute)
	set(&s.MergeDefaultEvictionSettings, false)
	defaultEviction(s)
	if s.EnforceNodeAllocatable == nil {
		s.EnforceNodeAllocatable = []string{PodsEnforcement}
	}
	set(&s.MemoryThrottlingFactor, 0.9)
	or(&s.MemoryReservationPolicy, kubeletconfig.NoneMemoryReservationPolicy)
	set(&s.LocalStorageCapacityIsolation, true)
}

// reserveCPUs reserves as much CPU as the list of reserved CPUs has, in place of what is
// reserved otherwise.
func reserveCPUs(s *Settings) {
	set, err := cpuset.Parse(s.ReservedSystemCPUs)
	if err != nil || set.IsEmpty() {
		return
	}
	system, kube := maps.Clone(s.SystemReserved), map[string]string{}
	delete(system, string(corev1.ResourceCPU))
	maps.Copy(kube, s.KubeReserved)
	kube[string(corev1.ResourceCPU)] = strconv.Itoa(set.Size())
	s.SystemReserved, s.KubeReserved = system, kube
}

// defaultEviction gives the thresholds that are not said their defaults: all of them
// if none is, or if those that are said are to be merged with the defaults.
func defaultEviction(s *Settings) {
	if s.EvictionHard != nil && !*s.MergeDefaultEvictionSettings {
		return
	}
	if s.EvictionHard == nil {
		s.EvictionHard = map[string]string{}
	}
	for signal, limit := range map[string]string{
		"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%",
	} {
		if _, known := s.EvictionHard[signal]; !known {
			s.EvictionHard[signal] = limit
		}
	}
}

// Reserved is what is kept from pods of one resource, for the system and for
// Kubernetes itself.
func Reserved(m map[string]string) corev1.ResourceList {
	out, _ := reserved(m)
	return out
}
