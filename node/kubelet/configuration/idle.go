package configuration

// An idleField is why a setting changes nothing here, and the value that asks for
// nothing else than what is done anyway.
type idleField struct {
	default_ any
	why      string
}

// idle are the settings without effect. All others act.
var idle = map[string]idleField{
	"syncFrequency":                             {nil, "changes are watched, nothing waits for a period"},
	"enableContentionProfiling":                 {false, "the kubelet serves no profiles"},
	"enableProfilingHandler":                    {nil, "the kubelet serves no profiles"},
	"enableDebugFlagsHandler":                   {nil, "the level of the log is the process's"},
	"streamingConnectionIdleTimeout":            {nil, "the runtime ends idle streams"},
	"kubeletCgroups":                            {"", "the process stays in the group it was started in"},
	"systemCgroups":                             {"", "processes of the system stay in their groups"},
	"cgroupDriver":                              {"cgroupfs", "control groups are made by cgroupfs"},
	"qosReserved":                               {nil, "memory is not reserved by class"},
	"hairpinMode":                               {nil, "the network plugin decides"},
	"podCIDR":                                   {"", "the Node says it"},
	"contentType":                               {nil, "requests are sent as protobuf"},
	"enableControllerAttachDetach":              {true, "controllers attach volumes"},
	"makeIPTablesUtilChains":                    {nil, "no rules of iptables are written"},
	"iptablesMasqueradeBit":                     {nil, "no rules of iptables are written"},
	"iptablesDropBit":                           {nil, "no rules of iptables are written"},
	"featureGates":                              {nil, "what is there is always on, but for MemoryQoS, which acts on control groups of version 2, DisableCPUQuotaWithExclusiveCPUs, and options of cpuManagerPolicy"},
	"containerLogMaxWorkers":                    {nil, "logs are rotated one after the other"},
	"configMapAndSecretChangeDetectionStrategy": {"Watch", "changes are watched"},
	"showHiddenMetricsForVersion":               {"", "no metric is hidden"},
	"volumePluginDir":                           {nil, "there are no FlexVolume plugins"},
	"kernelMemcgNotification":                   {false, "memory is looked at every ten seconds"},
	"logging":                                   {nil, "the log is the process's"},
	"tracing":                                   {nil, "no traces are sent"},
	"imageServiceEndpoint":                      {"", "the container runtime serves images"},
	"maxOpenFiles":                              {nil, "the limit of the process counts"},
	"volumeStatsAggPeriod":                      {nil, "volumes are measured once a minute"},

	"memoryReservationPolicy": {"None", "memory is not protected"},
	"registerNode":            {true, "the Node is made"},
}
