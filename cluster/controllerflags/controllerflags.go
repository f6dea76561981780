// Package controllerflags is what may be said of the controllers, with upstream's names:
// as flags of `knarr controller-manager`, or by --kube-controller-manager-arg of a
// server. It reads the file that --config names.
package controllerflags

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"knarr/cluster/componentflags"
	"knarr/controlplane/controllermanager"
	"knarr/controlplane/controllermanager/endpointslice"
	"knarr/controlplane/controllermanager/endpointslicemirroring"
	"knarr/controlplane/controllermanager/horizontalpodautoscaler"
	"knarr/controlplane/controllermanager/nodelifecycle"
	"knarr/controlplane/controllermanager/persistentvolume"
	"knarr/internal/flaghelp"
)

// Flags are those that are the same whether the controllers run alone or with
// everything else.
type Flags struct {
	// Controllers are those to run, as --controllers lists them.
	Controllers []string
	// Election is who runs them.
	Election componentflags.Election
	// Connection is how they reach the API server.
	Connection componentflags.Connection

	file                                           string
	signing, monitor, monitorGrace, startupGrace   time.Duration
	evictionRate, secondaryRate, unhealthyZone     float32
	largeCluster                                   int
	endpointBatch, sliceBatch, mirroringBatch      time.Duration
	perSlice, perSubset                            int
	quotaSync, legacyTokens                        time.Duration
	noForceDetach, provisioning, garbageCollection bool
	hostPaths                                      bool
	endedPods                                      int
	hostPath, nfs                                  recyclerFlags
	cloud, allocator                               string
	syncs                                          map[string]*int // by controller
	autoscaler                                     horizontalpodautoscaler.Config

	f *pflag.FlagSet
}

// A syncFlag is how many keys a controller works on at once.
type syncFlag struct {
	controller string
	default_   int
}

var syncFlags = map[string]syncFlag{
	"concurrent-cron-job-syncs":                           {"cronjob-controller", 5},
	"concurrent-daemonset-syncs":                          {"daemonset-controller", 2},
	"concurrent-deployment-syncs":                         {"deployment-controller", 5},
	"concurrent-endpoint-syncs":                           {"endpoints-controller", 5},
	"concurrent-ephemeralvolume-syncs":                    {"ephemeral-volume-controller", 5},
	"concurrent-gc-syncs":                                 {"garbage-collector-controller", 20},
	"concurrent-job-syncs":                                {"job-controller", 5},
	"concurrent-namespace-syncs":                          {"namespace-controller", 10},
	"concurrent-rc-syncs":                                 {"replicationcontroller-controller", 5},
	"concurrent-replicaset-syncs":                         {"replicaset-controller", 5},
	"concurrent-resource-quota-syncs":                     {"resourcequota-controller", 5},
	"concurrent-service-endpoint-syncs":                   {"endpointslice-controller", 5},
	"concurrent-serviceaccount-token-syncs":               {"serviceaccount-token-controller", 5},
	"concurrent-statefulset-syncs":                        {"statefulset-controller", 5},
	"concurrent-ttl-after-finished-syncs":                 {"ttl-after-finished-controller", 5},
	"concurrent-validating-admission-policy-status-syncs": {"validatingadmissionpolicy-status-controller", 5},
	"mirroring-concurrent-service-endpoint-syncs":         {"endpointslice-mirroring-controller", 5},
}

// ofServer are the flags of upstream's that a server has another way to say.
var ofServer = map[string]string{
	"cluster-cidr":             "is the cluster's; use --cluster-cidr",
	"service-cluster-ip-range": "is the cluster's; use --service-cidr",
	"node-cidr-mask-size":      "is the cluster's; use --node-cidr-mask-size-ipv4 or --node-cidr-mask-size-ipv6",
	"node-cidr-mask-size-ipv4": "is the cluster's; use --node-cidr-mask-size-ipv4",
	"node-cidr-mask-size-ipv6": "is the cluster's; use --node-cidr-mask-size-ipv6",
	"feature-gates":            "is the cluster's; use --kube-apiserver-arg feature-gates=",
	"bind-address":             "is of a port of its own; the controllers' metrics are at the API server's /metrics",
	"secure-port":              "is of a port of its own; the controllers' metrics are at the API server's /metrics",
	"leader-elect":             "is the cluster's; several servers take turns, one does not",
	"config":                   "is of controllers that run alone; give each setting by itself",
	"cloud-provider":           "is the cluster's; use --cloud-provider",
	"cloud-config":             "is the cluster's; use --cloud-config",
}

// Bind declares the flags.
func (c *Flags) Bind(f *pflag.FlagSet) {
	c.f = f
	f.StringVar(&c.file, "config", "", "`file` of a KubeControllerManagerConfiguration; flags come before it")
	f.StringSliceVar(&c.Controllers, "controllers", []string{"*"}, "`names` of controllers to run; * is all, -name leaves one out")
	c.Election.Bind(f, "kube-controller-manager")
	c.Connection.Bind(f, 20, 30)
	f.StringVar(&c.cloud, "cloud-provider", "", "`name` of the cloud provider, whose controllers are another program's: external, or none")
	flaghelp.Values(f, "cloud-provider", "external")
	f.StringVar(&c.allocator, "cidr-allocator-type", rangeAllocator, "`type` of what gives nodes their ranges: "+rangeAllocator)
	f.DurationVar(&c.signing, "cluster-signing-duration", 365*24*time.Hour, "the longest `time` that signed certificates are valid")
	f.DurationVar(&c.monitorGrace, "node-monitor-grace-period", 50*time.Second, "`time` after which a silent node is not ready")
	f.DurationVar(&c.startupGrace, "node-startup-grace-period", time.Minute, "`time` after which a new node that never said anything is not ready")
	f.DurationVar(&c.monitor, "node-monitor-period", 5*time.Second, "`time` between two looks at a node that is not ready")
	f.Float32Var(&c.evictionRate, "node-eviction-rate", 0.1, "`number` of nodes of a zone per second that pods leave, when they fail; 0: none")
	f.Float32Var(&c.secondaryRate, "secondary-node-eviction-rate", 0.01, "`number` of nodes per second in a large zone that is mostly down; 0: none")
	f.Float32Var(&c.unhealthyZone, "unhealthy-zone-threshold", 0.55, "`part` of a zone's nodes that are down when it is mostly down; three at least")
	f.IntVar(&c.largeCluster, "large-cluster-size-threshold", 50, "`number` of nodes of a zone that is not large yet: no pods leave it when it is mostly down")
	f.DurationVar(&c.endpointBatch, "endpoint-updates-batch-period", 0, "`time` for which changes of pods are gathered before Endpoints change")
	f.DurationVar(&c.sliceBatch, "endpointslice-updates-batch-period", 0, "`time` for which changes of pods are gathered before EndpointSlices change")
	f.DurationVar(&c.mirroringBatch, "mirroring-endpointslice-updates-batch-period", 0, "`time` for which changes of Endpoints are gathered before they are mirrored")
	f.IntVar(&c.perSlice, "max-endpoints-per-slice", 100, "most `endpoints` of one EndpointSlice")
	f.IntVar(&c.perSubset, "mirroring-max-endpoints-per-subset", 1000, "most `addresses` of a subset that are mirrored")
	f.DurationVar(&c.quotaSync, "resource-quota-sync-period", 5*time.Minute, "`time` after which a quota's use is counted anew")
	f.DurationVar(&c.legacyTokens, "legacy-service-account-token-clean-up-period", 365*24*time.Hour, "`time` without use after which a token in a Secret that was made for an account goes")
	f.BoolVar(&c.noForceDetach, "disable-force-detach-on-timeout", false, "leave a mounted volume to a node that is not ready, however long, unless it is out of service")
	f.BoolVar(&c.provisioning, "enable-dynamic-provisioning", true, "hand claims over to the provisioners of their classes")
	f.BoolVar(&c.hostPaths, "enable-hostpath-provisioner", false, "make volumes of classes of kubernetes.io/host-path, as directories in "+persistentvolume.HostPathDirectory+" of this host, which must be the only node")
	f.BoolVar(&c.garbageCollection, "enable-garbage-collector", true, "delete objects whose owners are gone")
	f.IntVar(&c.endedPods, "terminated-pod-gc-threshold", 12500, "`number` of ended pods that are kept")
	c.syncs = map[string]*int{}
	for _, flag := range slices.Sorted(maps.Keys(syncFlags)) {
		s := syncFlags[flag]
		c.syncs[s.controller] = f.Int(flag, s.default_, "`number` of objects that "+s.controller+" works on at once")
	}
	c.bindAutoscaler(f)
	c.hostPath.bind(f, "hostpath", "pv-recycler-timeout-increment-hostpath", 60)
	c.nfs.bind(f, "nfs", "pv-recycler-increment-timeout-nfs", 300)
	componentflags.BindIdle(f, idle)
}

const rangeAllocator = "RangeAllocator"

func (c *Flags) bindAutoscaler(f *pflag.FlagSet) {
	const prefix = "horizontal-pod-autoscaler-"
	a := &c.autoscaler
	f.IntVar(&a.Workers, "concurrent-"+prefix+"syncs", 5, "`number` of horizontal pod autoscalers looked at at once")
	f.DurationVar(&a.SyncPeriod, prefix+"sync-period", 15*time.Second, "`time` from one look at a horizontal pod autoscaler to the next")
	f.DurationVar(&a.DownscaleStabilization, prefix+"downscale-stabilization", 5*time.Minute, "`time` for which no fewer replicas are wanted than any metric asked for in it")
	f.DurationVar(&a.CPUInitializationPeriod, prefix+"cpu-initialization-period", 5*time.Minute, "`time` after a pod's start in which its CPU usage may be passed over")
	f.DurationVar(&a.InitialReadinessDelay, prefix+"initial-readiness-delay", 30*time.Second, "`time` after a pod's start in which a change of readiness counts as the first")
	f.Float64Var(&a.Tolerance, prefix+"tolerance", 0.1, "`part` of the target by which usage may differ before replicas change")
}

// Parse takes settings of the form key=value, of a server.
func Parse(settings []string) (*Flags, error) {
	c := &Flags{}
	if err := componentflags.Set(c.Bind, settings, ofServer); err != nil {
		return nil, err
	}
	return c, c.Validate()
}

// Keys are what Parse knows.
func Keys() []string { return componentflags.Keys(new(Flags).Bind, ofServer) }

// Load sets what the file says that the flags name, of controllers that run alone.
func (c *Flags) Load() error {
	if c.file == "" {
		return nil
	}
	return configuration.Load(c.f, c.file)
}

// Configuration is what /configz shows: the flags as the file would say them.
func (c *Flags) Configuration() map[string]any { return configuration.Show(c.f) }

// Validate names what cannot be, and logs which flags do nothing.
func (c *Flags) Validate() error {
	errs := []error{c.autoscaler.Validate(), controllermanager.CheckSelection(c.Controllers), c.Election.Validate(), c.Connection.Validate(),
		c.hostPath.load(), c.nfs.load(), componentflags.CheckIdle(c.f, idle)}
	bad := func(when bool, format string, args ...any) {
		if when {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.cloud != "" && c.cloud != "external", "--cloud-provider: cloud provider %q was specified, but built-in cloud providers are disabled. "+
		"Please set --cloud-provider=external and migrate to an external cloud provider", c.cloud)
	migrates, _ := c.f.GetBool("enable-leader-migration")
	migration, _ := c.f.GetString("leader-migration-config")
	bad(migrates && migration != "", "--leader-migration-config: controllers are not handed over to another program by a Lease; "+
		"start them there once they have ended here, with --controllers")
	bad(c.allocator != "" && c.allocator != rangeAllocator, "--cidr-allocator-type: built-in cloud providers are disabled. The ipam %s is not available", c.allocator)
	for flag, d := range map[string]time.Duration{"node-monitor-grace-period": c.monitorGrace, "node-startup-grace-period": c.startupGrace,
		"node-monitor-period": c.monitor, "resource-quota-sync-period": c.quotaSync, "legacy-service-account-token-clean-up-period": c.legacyTokens} {
		bad(d <= 0, "--%s: must be greater than zero", flag)
	}
	for flag, d := range map[string]time.Duration{"endpoint-updates-batch-period": c.endpointBatch, "endpointslice-updates-batch-period": c.sliceBatch,
		"mirroring-endpointslice-updates-batch-period": c.mirroringBatch} {
		bad(d < 0, "--%s: must not be negative", flag)
	}
	for flag, n := range map[string]int{"max-endpoints-per-slice": c.perSlice, "mirroring-max-endpoints-per-subset": c.perSubset} {
		bad(n < 1, "%s must not be less than 1, but got %d", flag, n)
		bad(n > 1000, "%s must not be more than 1000, but got %d", flag, n)
	}
	for _, flag := range slices.Sorted(maps.Keys(syncFlags)) {
		bad(*c.syncs[syncFlags[flag].controller] < 0, "--%s: must not be negative", flag)
	}
	slices.SortStableFunc(errs, func(a, b error) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return errors.Join(errs...)
}

// Apply completes a controller manager's Config. Also are controllers that run besides
// those asked for, unless they are named to be left out. In that configuration zero is a
// default: the least there is, or -1, stands for none.
func (c *Flags) Apply(cfg *controllermanager.Config, also ...string) {
	cfg.Controllers = append(slices.Clone(c.Controllers), also...)
	cfg.Election = c.Election.Times
	cfg.QPS, cfg.Burst = c.Connection.Limits()
	if cfg.Kube != nil {
		c.Connection.Apply(cfg.Kube)
	}
	if as := cfg.ClientFor; as != nil {
		cfg.ClientFor = func(account string) *rest.Config {
			kube := as(account)
			c.Connection.Apply(kube)
			return kube
		}
	}
	cfg.SigningDuration, cfg.TerminatedPodThreshold = c.signing, cmp.Or(c.endedPods, -1)
	cfg.NodeLifecycle = nodelifecycle.Config{
		MonitorGracePeriod: c.monitorGrace, StartupGracePeriod: c.startupGrace, MonitorPeriod: c.monitor,
		EvictionRate: cmp.Or(c.evictionRate, -1), SecondaryEvictionRate: cmp.Or(c.secondaryRate, -1),
		UnhealthyZoneThreshold: cmp.Or(c.unhealthyZone, -1), LargeClusterSizeThreshold: cmp.Or(c.largeCluster, -1),
	}
	cfg.EndpointUpdatesBatchPeriod = c.endpointBatch
	cfg.EndpointSlice = endpointslice.Config{MaxEndpointsPerSlice: c.perSlice, UpdatesBatchPeriod: c.sliceBatch}
	cfg.EndpointSliceMirroring = endpointslicemirroring.Config{MaxEndpointsPerSubset: c.perSubset, UpdatesBatchPeriod: c.mirroringBatch}
	cfg.ResourceQuotaSyncPeriod, cfg.LegacyTokenUnused = c.quotaSync, c.legacyTokens
	cfg.DisableForceDetachOnTimeout, cfg.NoGarbageCollector = c.noForceDetach, !c.garbageCollection
	cfg.PersistentVolume = persistentvolume.Config{NoDynamicProvisioning: !c.provisioning, HostPath: c.hostPath.recycler(), NFS: c.nfs.recycler()}
	if c.hostPaths {
		cfg.PersistentVolume.HostPaths = persistentvolume.HostPathDirectory
	}
	cfg.ConcurrentSyncs = map[string]int{}
	for name, n := range c.syncs {
		cfg.ConcurrentSyncs[name] = *n
	}
	a := c.autoscaler
	a.DownscaleStabilization, a.CPUInitializationPeriod = max(a.DownscaleStabilization, 1), max(a.CPUInitializationPeriod, 1)
	a.InitialReadinessDelay, a.Tolerance = max(a.InitialReadinessDelay, 1), max(a.Tolerance, math.SmallestNonzeroFloat64)
	cfg.HorizontalPodAutoscaler = a
}
