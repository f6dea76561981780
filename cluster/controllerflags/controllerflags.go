// Package controllerflags is what may be said of the controllers, with upstream's names:
// as flags of `knarr controller-manager`, or by --kube-controller-manager-arg of a
// server. It reads nothing.
package controllerflags

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"knarr/cluster/componentflags"
	"knarr/controlplane/controllermanager"
	"knarr/controlplane/controllermanager/horizontalpodautoscaler"
)

// Flags are those that are the same whether the controllers run alone or with
// everything else.
type Flags struct {
	// Controllers are those to run, as --controllers lists them.
	Controllers []string

	signing    time.Duration
	nodeGrace  time.Duration
	endedPods  int
	syncs      map[string]*int // by controller
	autoscaler horizontalpodautoscaler.Config
}

// syncFlags are how many keys a controller works on at once.
var syncFlags = map[string]string{
	"concurrent-cron-job-syncs":                           "cronjob-controller",
	"concurrent-daemonset-syncs":                          "daemonset-controller",
	"concurrent-deployment-syncs":                         "deployment-controller",
	"concurrent-endpoint-syncs":                           "endpoints-controller",
	"concurrent-ephemeralvolume-syncs":                    "ephemeral-volume-controller",
	"concurrent-gc-syncs":                                 "garbage-collector-controller",
	"concurrent-job-syncs":                                "job-controller",
	"concurrent-namespace-syncs":                          "namespace-controller",
	"concurrent-rc-syncs":                                 "replicationcontroller-controller",
	"concurrent-replicaset-syncs":                         "replicaset-controller",
	"concurrent-resource-quota-syncs":                     "resourcequota-controller",
	"concurrent-service-endpoint-syncs":                   "endpointslice-controller",
	"concurrent-serviceaccount-token-syncs":               "serviceaccount-token-controller",
	"concurrent-statefulset-syncs":                        "statefulset-controller",
	"concurrent-ttl-after-finished-syncs":                 "ttl-after-finished-controller",
	"concurrent-validating-admission-policy-status-syncs": "validatingadmissionpolicy-status-controller",
	"mirroring-concurrent-service-endpoint-syncs":         "endpointslice-mirroring-controller",
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
}

// Bind declares the flags.
func (c *Flags) Bind(f *pflag.FlagSet) {
	f.StringSliceVar(&c.Controllers, "controllers", []string{"*"}, "`names` of controllers to run; * is all, -name leaves one out")
	f.DurationVar(&c.signing, "cluster-signing-duration", 365*24*time.Hour, "the longest `time` that signed certificates are valid")
	f.DurationVar(&c.nodeGrace, "node-monitor-grace-period", 50*time.Second, "`time` after which a silent node is not ready")
	f.IntVar(&c.endedPods, "terminated-pod-gc-threshold", 12500, "`number` of ended pods that are kept")
	c.syncs = map[string]*int{}
	for _, flag := range slices.Sorted(maps.Keys(syncFlags)) {
		name := syncFlags[flag]
		c.syncs[name] = f.Int(flag, 0, "`number` of objects that "+name+" works on at once (default: its own)")
	}
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

// Validate names what cannot be.
func (c *Flags) Validate() error {
	errs := []error{c.autoscaler.Validate(), controllermanager.CheckSelection(c.Controllers)}
	if c.nodeGrace <= 0 {
		errs = append(errs, errors.New("--node-monitor-grace-period: must be greater than zero"))
	}
	for _, flag := range slices.Sorted(maps.Keys(syncFlags)) {
		if *c.syncs[syncFlags[flag]] < 0 {
			errs = append(errs, fmt.Errorf("--%s: must not be negative", flag))
		}
	}
	return errors.Join(errs...)
}

// Apply completes a controller manager's Config. Also are controllers that run besides
// those asked for, unless they are named to be left out.
func (c *Flags) Apply(cfg *controllermanager.Config, also ...string) {
	cfg.Controllers = append(slices.Clone(c.Controllers), also...)
	cfg.SigningDuration, cfg.NodeMonitorGracePeriod, cfg.TerminatedPodThreshold = c.signing, c.nodeGrace, cmp.Or(c.endedPods, -1)
	cfg.ConcurrentSyncs = map[string]int{}
	for name, n := range c.syncs {
		cfg.ConcurrentSyncs[name] = *n
	}
	// In the configuration zero is the default: the least there is stands for none.
	a := c.autoscaler
	a.DownscaleStabilization, a.CPUInitializationPeriod = max(a.DownscaleStabilization, 1), max(a.CPUInitializationPeriod, 1)
	a.InitialReadinessDelay, a.Tolerance = max(a.InitialReadinessDelay, 1), max(a.Tolerance, math.SmallestNonzeroFloat64)
	cfg.HorizontalPodAutoscaler = a
}
