package configuration

import "knarr/internal/features"

// An idleField is why a setting changes nothing here, and the value that asks for
// nothing else than what is done anyway.
type idleField struct {
	default_ any
	why      string
}

// idle are the settings without effect, but for those that act alone. All others act.
var idle = map[string]idleField{
	"syncFrequency":                             {nil, "changes are watched, nothing waits for a period"},
	"enableDebugFlagsHandler":                   {nil, "the level of the log is the process's"},
	"streamingConnectionIdleTimeout":            {nil, "the runtime ends idle streams"},
	"kubeletCgroups":                            {"", "the process stays in the group it was started in"},
	"systemCgroups":                             {"", "processes of the system stay in their groups"},
	"qosReserved":                               {nil, "memory is not reserved by class"},
	"hairpinMode":                               {nil, "the network plugin decides"},
	"podCIDR":                                   {"", "the Node says it"},
	"contentType":                               {nil, "requests are sent as protobuf"},
	"enableControllerAttachDetach":              {true, "controllers attach volumes"},
	"makeIPTablesUtilChains":                    {nil, "no rules of iptables are written"},
	"iptablesMasqueradeBit":                     {nil, "no rules of iptables are written"},
	"iptablesDropBit":                           {nil, "no rules of iptables are written"},
	"configMapAndSecretChangeDetectionStrategy": {"Watch", "changes are watched"},
	"showHiddenMetricsForVersion":               {"", "no metric is hidden"},
	"volumePluginDir":                           {nil, "there are no FlexVolume plugins"},
	"kernelMemcgNotification":                   {false, "memory is looked at every ten seconds"},
	"logging.format":                            {nil, "the log is the process's"},
	"logging.verbosity":                         {nil, "the level of the log is the process's"},
	"logging.flushFrequency":                    {nil, "the log is written at once"},
	"logging.vmodule":                           {nil, "a level is that of all files"},
	"logging.options":                           {nil, "all of the log goes to one stream, at once"},
	"maxOpenFiles":                              {nil, "the limit of the process counts"},
}

// burstOf are the settings that act beside another alone, whose default here is that nothing
// waits.
var burstOf = map[string]string{"registryBurst": "registryPullQPS", "eventBurst": "eventRecordQPS", "kubeAPIBurst": "kubeAPIQPS"}

// actsAlone are those that act all the same where the process runs a kubelet and nothing else:
// they are about the process.
var actsAlone = map[string]bool{"maxOpenFiles": true, "enableDebugFlagsHandler": true, "logging.format": true, "logging.verbosity": true}

// Idle says why a flag's setting changes nothing in a program that runs a kubelet alone; "" for
// one that acts.
func (f *Flag) Idle() string {
	if actsAlone[f.Field] {
		return ""
	}
	return idle[f.Field].why
}

// LogFlags are upstream's flags of the log, which a program has that runs a kubelet alone and
// nothing else: in another they change nothing, and this is why.
var LogFlags = map[string]string{
	"v": "the level of the log is the process's", "vmodule": "the level of the log is the process's",
	"log-flush-frequency": "the log is written at once", "logging-format": "the log is the process's",
	"log-text-split-stream": "the log is the process's", "log-text-info-buffer-size": "the log is the process's",
	"log-json-split-stream": "the log is the process's", "log-json-info-buffer-size": "the log is the process's",
}

// IdleFlags are upstream's other flags that no field of a KubeletConfiguration has and that change
// nothing here, and why. A node that is given them starts.
var IdleFlags = map[string]string{
	"lock-file": "one process runs containers from a directory", "exit-on-lock-contention": "there is no lock file",
	"runtime-cgroups":           "the runtime stays in its group",
	"experimental-mounter-path": "the node's own mount is used", "experimental-allocatable-ignore-eviction": "hard thresholds of eviction are kept from pods",
	"maximum-dead-containers": "the last two containers of a name are kept", "maximum-dead-containers-per-container": "the last two containers of a name are kept",
	"minimum-container-ttl-duration": "the last two containers of a name are kept",
	"housekeeping-interval":          "groups are measured when somebody asks", "global-housekeeping-interval": "groups are measured when somebody asks",
	"application-metrics-count-limit": noCAdvisor, "boot-id-file": noCAdvisor, "container-hints": noCAdvisor, "containerd": noCAdvisor, "containerd-namespace": noCAdvisor,
	"enable-load-reader": noCAdvisor, "event-storage-age-limit": noCAdvisor, "event-storage-event-limit": noCAdvisor, "log-cadvisor-usage": noCAdvisor, "machine-id-file": noCAdvisor,
	"storage-driver-user": noCAdvisor, "storage-driver-password": noCAdvisor, "storage-driver-host": noCAdvisor, "storage-driver-db": noCAdvisor, "storage-driver-table": noCAdvisor,
	"storage-driver-secure": noCAdvisor, "storage-driver-buffer-duration": noCAdvisor,
}

const noCAdvisor = "there is no cAdvisor"

// Gates are the features that can be changed here.
var Gates = []string{"MemoryQoS", "DisableCPUQuotaWithExclusiveCPUs", "KubeletPodResourcesListUseActivePods", "LocalStorageCapacityIsolationFSQuotaMonitoring", "CPUManagerPolicyAlphaOptions", "CPUManagerPolicyBetaOptions", "AllAlpha", "AllBeta"}

// idleGates are the features that are set to another value than their default and change
// nothing here.
func idleGates(set any) []string {
	s := features.Set{}
	values, _ := set.(map[string]any)
	for name, on := range values {
		s[name] = on == true
	}
	return s.Idle(Gates...)
}
