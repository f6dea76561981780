package configuration

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	fieldpath "k8s.io/apimachinery/pkg/util/validation/field"
	tracing "k8s.io/component-base/tracing/api/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"knarr/internal/features"
	"knarr/node/kubelet/eviction"
	"knarr/node/kubelet/pullrecords"
)

// What limits can be enforced on.
const (
	PodsEnforcement                  = "pods"
	SystemReservedEnforcement        = "system-reserved"
	SystemReservedCompressible       = "system-reserved-compressible"
	KubeReservedEnforcement          = "kube-reserved"
	KubeReservedCompressible         = "kube-reserved-compressible"
	noEnforcement                    = "none"
	leastUserNamespaceIDs      int64 = 65536
)

// NoSwap and LimitedSwap are what containers may do with swap.
const (
	NoSwap      = "NoSwap"
	LimitedSwap = "LimitedSwap"
)

// faults gathers everything that is wrong.
type faults []error

func (f *faults) bad(when bool, format string, args ...any) {
	if when {
		*f = append(*f, fmt.Errorf("invalid configuration: "+format, args...))
	}
}

// in notes an error of a field, which it names together with its flag.
func (f *faults) in(field string, err error) {
	if err != nil {
		*f = append(*f, fmt.Errorf("%s: %w", label(field), err))
	}
}

// oneOf notes a value of a field that is none of those that there are, with upstream's sentence
// about it.
func (f *faults) oneOf(field, value string, all []string, sentence string) {
	if !slices.Contains(all, value) {
		f.in(field, fmt.Errorf(sentence+", must be one of: %q", value, all))
	}
}

func (f *faults) percentage(name, flag string, n int32) {
	f.bad(n < 0 || n > 100, "%s (--%s) %v must be between 0 and 100, inclusive", name, flag, n)
}

func (f *faults) notNegative(name, flag string, n int64) {
	f.bad(n < 0, "%s (--%s) %v must not be a negative number", name, flag, n)
}

// Validate says everything that is wrong with settings, in upstream's words.
func Validate(s *Settings) error {
	var f faults
	validateServer(&f, s)
	validateNumbers(&f, s)
	validateImages(&f, s)
	validateTaints(&f, s)
	validatePolicies(&f, s)
	validateShutdown(&f, s)
	validateEnforcement(&f, s)
	validateReserved(&f, s)
	validateLogs(&f, s)
	validatePaths(&f, s)
	validateNamespaces(&f, s)
	validateEviction(&f, s)
	if faults := tracing.ValidateTracingConfiguration(s.Tracing, nil, fieldpath.NewPath("tracing")); len(faults) > 0 {
		f = append(f, faults.ToAggregate().Errors()...)
	}
	f.in("featureGates", features.Set(s.FeatureGates).Check())
	return errors.Join(f...)
}

// validateEviction notes the first of the thresholds' faults, with its field.
func validateEviction(f *faults, s *Settings) {
	for _, of := range []struct {
		field                      string
		hard, soft, grace, reclaim map[string]string
	}{
		{"evictionHard", s.EvictionHard, nil, nil, nil},
		{"evictionSoft", s.EvictionSoft, nil, nil, nil},
		{"evictionSoftGracePeriod", nil, nil, s.EvictionSoftGracePeriod, nil},
		{"evictionSoft", nil, s.EvictionSoft, s.EvictionSoftGracePeriod, nil},
		{"evictionMinimumReclaim", nil, nil, nil, s.EvictionMinimumReclaim},
	} {
		if _, err := eviction.Parse(of.hard, of.soft, of.grace, of.reclaim, false); err != nil {
			if strings.HasPrefix(err.Error(), "unsupported eviction signal") {
				err = fmt.Errorf("%w, must be one of: %q", err, eviction.Signals)
			}
			f.in(of.field, err)
			return
		}
	}
}

// validateGates says what was set that its feature gate does not allow, which is off. It
// looks at what was said: what is so by default nobody has asked for.
func validateGates(f *faults, s *Settings) {
	off := func(gate string) bool { return !features.Set(s.FeatureGates).Enabled(gate) }
	if p := s.CPUCFSQuotaPeriod; p != nil {
		f.bad(off("CustomCPUCFSQuotaPeriod") && p.Duration != defaultQuotaPeriod,
			"cpuCFSQuotaPeriod (--cpu-cfs-quota-period) %v requires feature gate CustomCPUCFSQuotaPeriod", *p)
	}
	f.bad(off("RotateKubeletServerCertificate") && s.ServerTLSBootstrap, "serverTLSBootstrap %v requires feature gate RotateKubeletServerCertificate", s.ServerTLSBootstrap)
	f.bad(off("GracefulNodeShutdown") && (s.ShutdownGracePeriod.Duration > 0 || s.ShutdownGracePeriodCriticalPods.Duration > 0),
		"specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate GracefulNodeShutdown")
	f.bad(off("GracefulNodeShutdownBasedOnPodPriority") && len(s.ShutdownGracePeriodByPodPriority) > 0,
		"Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority")
	f.bad(off("KubeletCrashLoopBackOffMax") && s.CrashLoopBackOff.MaxContainerRestartPeriod != nil,
		"FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not be set")
	const pulled = "KubeletEnsureSecretPulledImages"
	f.bad(off(pulled) && s.ImagePullCredentialsVerificationPolicy != "", "`imagePullCredentialsVerificationPolicy` must not be set if "+pulled+" feature gate is not enabled")
	f.bad(off(pulled) && len(s.PreloadedImagesVerificationAllowlist) > 0, "`preloadedImagesVerificationAllowlist` must not be set if "+pulled+" feature gate is not enabled")
}

func validateServer(f *faults, s *Settings) {
	port := func(n int32) bool { return len(validation.IsValidPortNum(int(n))) == 0 }
	f.bad(*s.HealthzPort != 0 && !port(*s.HealthzPort), "healthzPort (--healthz-port) %v must be between 1 and 65535, inclusive", *s.HealthzPort)
	f.bad(!port(s.Port), "port (--port) %v must be between 1 and 65535, inclusive", s.Port)
	f.bad(s.ReadOnlyPort != 0 && !port(s.ReadOnlyPort), "readOnlyPort (--read-only-port) %v must be between 0 and 65535, inclusive", s.ReadOnlyPort)
	for _, a := range []struct{ field, value string }{{"address (--address)", s.Address}, {"healthzBindAddress (--healthz-bind-address)", s.HealthzBindAddress}} {
		f.bad(net.ParseIP(a.value) == nil, "%s %q is not an IP address", a.field, a.value)
	}
	for _, a := range s.ClusterDNS {
		f.bad(net.ParseIP(a) == nil, "clusterDNS (--cluster-dns) %q is not an IP address", a)
	}
	if m := s.Authorization.Mode; m != kubeletconfig.KubeletAuthorizationModeWebhook && m != kubeletconfig.KubeletAuthorizationModeAlwaysAllow {
		f.in("authorization.mode", fmt.Errorf("unknown authorization mode %s, must be one of: %q", m, []kubeletconfig.KubeletAuthorizationMode{kubeletconfig.KubeletAuthorizationModeAlwaysAllow, kubeletconfig.KubeletAuthorizationModeWebhook}))
	}
	f.bad(s.ContainerRuntimeEndpoint == "", "the containerRuntimeEndpoint was not specified or empty")
	f.bad(*s.EnableSystemLogQuery && !*s.EnableSystemLogHandler, "enableSystemLogHandler is required for enableSystemLogQuery")
	_, err := TLSVersion(s.TLSMinVersion)
	f.in("tlsMinVersion", err)
	_, err = CipherSuites(s.TLSCipherSuites)
	f.in("tlsCipherSuites", err)
	for _, pattern := range s.AllowedUnsafeSysctls {
		f.bad(sysctlFault(pattern) != "", "allowedUnsafeSysctls (--allowed-unsafe-sysctls): %s", sysctlFault(pattern))
	}
	f.bad(s.RunOnce, "runOnce (--runOnce) %v, Runonce mode has been deprecated and should not be set", s.RunOnce)
}

func validateNumbers(f *faults, s *Settings) {
	f.bad(s.NodeLeaseDurationSeconds <= 0, "nodeLeaseDurationSeconds must be greater than 0")
	f.bad(s.SystemCgroups != "" && s.CgroupRoot == "", "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified")
	f.notNegative("eventBurst", "event-burst", int64(s.EventBurst))
	f.notNegative("eventRecordQPS", "event-qps", int64(*s.EventRecordQPS))
	d := s.CPUCFSQuotaPeriod.Duration
	f.bad(d < time.Millisecond || d > time.Second, "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) %v must be between 1ms and 1sec, inclusive", *s.CPUCFSQuotaPeriod)
	for _, b := range []struct {
		name, flag string
		n          int32
	}{{"iptablesDropBit", "iptables-drop-bit", *s.IPTablesDropBit}, {"iptablesMasqueradeBit", "iptables-masquerade-bit", *s.IPTablesMasqueradeBit}} {
		f.bad(b.n < 0 || b.n > 31, "%s (--%s) %v must be between 0 and 31, inclusive", b.name, b.flag, b.n)
	}
	f.notNegative("kubeAPIBurst", "kube-api-burst", int64(s.KubeAPIBurst))
	f.notNegative("kubeAPIQPS", "kube-api-qps", int64(*s.KubeAPIQPS))
	f.bad(*s.NodeStatusMaxImages < -1, "nodeStatusMaxImages (--node-status-max-images) %v must be -1 or greater", *s.NodeStatusMaxImages)
	f.notNegative("maxOpenFiles", "max-open-files", s.MaxOpenFiles)
	f.notNegative("maxPods", "max-pods", int64(s.MaxPods))
	f.bad(*s.OOMScoreAdj < -1000 || *s.OOMScoreAdj > 1000, "oomScoreAdj (--oom-score-adj) %v must be between -1000 and 1000, inclusive", *s.OOMScoreAdj)
	f.notNegative("podsPerCore", "pods-per-core", int64(s.PodsPerCore))
	if p := s.CrashLoopBackOff.MaxContainerRestartPeriod; p.Duration < time.Second || p.Duration > 5*time.Minute {
		f.bad(true, "CrashLoopBackOff.MaxContainerRestartPeriod (got: %v seconds) must be set between 1s and 300s", p.Seconds())
	}
	m := *s.MemoryThrottlingFactor
	f.bad(m <= 0 || m > 1, "memoryThrottlingFactor %v must be greater than 0 and less than or equal to 1.0", m)
}

func validateImages(f *faults, s *Settings) {
	high, low := *s.ImageGCHighThresholdPercent, *s.ImageGCLowThresholdPercent
	f.percentage("imageGCHighThresholdPercent", "image-gc-high-threshold", high)
	f.percentage("imageGCLowThresholdPercent", "image-gc-low-threshold", low)
	f.bad(low >= high, "imageGCLowThresholdPercent (--image-gc-low-threshold) %v must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) %v", low, high)
	least, most := s.ImageMinimumGCAge.Duration, s.ImageMaximumGCAge.Duration
	f.bad(least < 0, "imageMinimumGCAge %v must not be negative", least)
	f.bad(most < 0, "imageMaximumGCAge %v must not be negative", most)
	f.bad(most > 0 && most <= least, "imageMaximumGCAge %v must be greater than imageMinimumGCAge %v", most, least)
	f.notNegative("registryBurst", "registry-burst", int64(s.RegistryBurst))
	f.notNegative("registryPullQPS", "registry-qps", int64(*s.RegistryPullQPS))
	if n := s.MaxParallelImagePulls; n != nil {
		f.bad(*n < 1, "maxParallelImagePulls %v must be a positive number", *n)
		f.bad(*s.SerializeImagePulls && *n > 1, "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false")
	}
	policies := []kubeletconfig.ImagePullCredentialsVerificationPolicy{
		kubeletconfig.NeverVerify, kubeletconfig.NeverVerifyPreloadedImages, kubeletconfig.NeverVerifyAllowlistedImages, kubeletconfig.AlwaysVerify}
	policy := s.ImagePullCredentialsVerificationPolicy
	f.bad(!slices.Contains(policies, policy), "option %q specified for imagePullCredentialsVerificationPolicy. Valid options are %q, %q, %q or %q",
		policy, policies[0], policies[1], policies[2], policies[3])
	f.bad(len(s.PreloadedImagesVerificationAllowlist) > 0 && policy != kubeletconfig.NeverVerifyAllowlistedImages,
		"can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \"NeverVerifyAllowlistedImages\"")
	for _, pattern := range s.PreloadedImagesVerificationAllowlist {
		err := pullrecords.CheckPattern(pattern)
		f.bad(err != nil, "invalid image pattern in `preloadedImagesVerificationAllowlist`: %v", err)
	}
}

func validateTaints(f *faults, s *Settings) {
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	for _, t := range s.RegisterWithTaints {
		wrong := slices.Concat(validation.IsQualifiedName(t.Key), validation.IsValidLabelValue(t.Value))
		if t.Effect != "" && !slices.Contains(effects, t.Effect) {
			wrong = append(wrong, fmt.Sprintf("effect %q must be one of: %q", t.Effect, effects))
		}
		if len(wrong) > 0 {
			f.in("registerWithTaints", fmt.Errorf("invalid taint: %s, %s", t.ToString(), strings.Join(wrong, ", ")))
		}
		f.bad(t.TimeAdded != nil, "taint.TimeAdded is not nil")
	}
}

// What makes control groups: this process, as directories, or systemd, as slices and scopes.
const (
	Cgroupfs = "cgroupfs"
	Systemd  = "systemd"
)

// CgroupDrivers are what cgroupDriver may be.
var CgroupDrivers = []string{Cgroupfs, Systemd}

// TieredReservation is the memoryReservationPolicy by which the kernel keeps what pods ask for.
const TieredReservation = kubeletconfig.TieredReservationMemoryReservationPolicy

func validatePolicies(f *faults, s *Settings) {
	topology := []string{kubeletconfig.NoneTopologyManagerPolicy, kubeletconfig.BestEffortTopologyManagerPolicy, kubeletconfig.RestrictedTopologyManagerPolicy, kubeletconfig.SingleNumaNodeTopologyManagerPolicy}
	f.bad(!slices.Contains(topology, s.TopologyManagerPolicy), "topologyManagerPolicy (--topology-manager-policy) %q must be one of: %q", s.TopologyManagerPolicy, topology)
	scope := []string{kubeletconfig.ContainerTopologyManagerScope, kubeletconfig.PodTopologyManagerScope}
	f.bad(!slices.Contains(scope, s.TopologyManagerScope), "topologyManagerScope (--topology-manager-scope) %q must be one of: %q, or %q", s.TopologyManagerScope, scope[0], scope[1])
	f.oneOf("cpuManagerPolicy", s.CPUManagerPolicy, []string{"none", "static"}, "unknown policy: %q")
	f.oneOf("memoryManagerPolicy", s.MemoryManagerPolicy, []string{kubeletconfig.NoneMemoryManagerPolicy, kubeletconfig.StaticMemoryManagerPolicy}, "unknown policy: %q")
	f.bad(!slices.Contains([]string{"", NoSwap, LimitedSwap}, s.MemorySwap.SwapBehavior), "memorySwap.swapBehavior %q must be one of: \"\", %q or %q", s.MemorySwap.SwapBehavior, LimitedSwap, NoSwap)
	hairpin := []string{kubeletconfig.HairpinNone, kubeletconfig.HairpinVeth, kubeletconfig.PromiscuousBridge}
	f.bad(!slices.Contains(hairpin, s.HairpinMode), "option %q specified for hairpinMode (--hairpin-mode). Valid options are %q, %q or %q", s.HairpinMode, hairpin[0], hairpin[1], hairpin[2])
	memory := []kubeletconfig.MemoryReservationPolicy{kubeletconfig.NoneMemoryReservationPolicy, TieredReservation}
	f.bad(!slices.Contains(memory, s.MemoryReservationPolicy), "option %q specified for memoryReservationPolicy. Valid options are %q or %q", s.MemoryReservationPolicy, memory[0], memory[1])
	f.bad(s.MemoryReservationPolicy == TieredReservation && !features.Set(s.FeatureGates).Enabled("MemoryQoS"),
		"memoryReservationPolicy %q requires MemoryQoS feature gate to be enabled", s.MemoryReservationPolicy)
	if !slices.Contains(CgroupDrivers, s.CgroupDriver) {
		*f = append(*f, fmt.Errorf("invalid configuration: cgroupDriver (--cgroup-driver) %q is neither cgroupfs nor systemd", s.CgroupDriver))
	}
}

func validateShutdown(f *faults, s *Settings) {
	all, critical := s.ShutdownGracePeriod, s.ShutdownGracePeriodCriticalPods
	f.bad(critical.Duration > all.Duration, "shutdownGracePeriodCriticalPods %v must be <= shutdownGracePeriod %v", critical, all)
	short := func(d time.Duration) bool { return d < 0 || d > 0 && d < time.Second }
	f.bad(short(all.Duration), "shutdownGracePeriod %v must be either zero or otherwise >= 1 sec", all)
	f.bad(short(critical.Duration), "shutdownGracePeriodCriticalPods %v must be either zero or otherwise >= 1 sec", critical)
	f.bad(len(s.ShutdownGracePeriodByPodPriority) != 0 && (all.Duration > 0 || critical.Duration > 0), "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time")
}

func validateEnforcement(f *faults, s *Settings) {
	const where = "in enforceNodeAllocatable (--enforce-node-allocatable)"
	has := func(name string) bool { return slices.Contains(s.EnforceNodeAllocatable, name) }
	for _, pair := range [][2]string{{SystemReservedEnforcement, SystemReservedCompressible}, {KubeReservedEnforcement, KubeReservedCompressible}} {
		f.bad(has(pair[0]) && has(pair[1]), "both %q and %q cannot be specified together "+where, pair[0], pair[1])
	}
	seen := map[string]bool{}
	for _, name := range s.EnforceNodeAllocatable {
		if seen[name] {
			f.bad(true, "duplicated enforcements %q "+where, name)
			continue
		}
		seen[name] = true
		switch name {
		case PodsEnforcement:
		case SystemReservedEnforcement, SystemReservedCompressible:
			f.bad(s.SystemReservedCgroup == "", "systemReservedCgroup (--system-reserved-cgroup) must be specified when %q or %q included "+where, SystemReservedEnforcement, SystemReservedCompressible)
		case KubeReservedEnforcement, KubeReservedCompressible:
			f.bad(s.KubeReservedCgroup == "", "kubeReservedCgroup (--kube-reserved-cgroup) must be specified when %q or %q included "+where, KubeReservedEnforcement, KubeReservedCompressible)
		case noEnforcement:
			f.bad(len(s.EnforceNodeAllocatable) > 1, "enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements when %q is specified", noEnforcement)
			continue
		default:
			f.bad(true, "option %q specified for enforceNodeAllocatable (--enforce-node-allocatable). Valid options are %q, %q, %q, %q, %q or %q",
				name, PodsEnforcement, SystemReservedEnforcement, SystemReservedCompressible, KubeReservedEnforcement, KubeReservedCompressible, noEnforcement)
			continue
		}
		f.bad(!*s.CgroupsPerQOS, "cgroupsPerQOS (--cgroups-per-qos) must be set to true when %q contained "+where, name)
	}
}

func validateReserved(f *faults, s *Settings) {
	if s.ReservedSystemCPUs != "" {
		f.bad(s.SystemReservedCgroup != "" || s.KubeReservedCgroup != "",
			"can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)")
		_, err := cpuset.Parse(s.ReservedSystemCPUs)
		f.bad(err != nil, "unable to parse reservedSystemCPUs (--reserved-cpus) %v, error: %w", s.ReservedSystemCPUs, err)
	}
	_, err := reserved(s.SystemReserved)
	f.in("systemReserved", err)
	_, err = reserved(s.KubeReserved)
	f.in("kubeReserved", err)
	seen := map[int32]map[corev1.ResourceName]bool{}
	for _, r := range s.ReservedMemory {
		if seen[r.NumaNode] == nil {
			seen[r.NumaNode] = map[corev1.ResourceName]bool{}
		}
		for name, q := range r.Limits {
			huge := len(name) > len(corev1.ResourceHugePagesPrefix) && name[:len(corev1.ResourceHugePagesPrefix)] == corev1.ResourceHugePagesPrefix
			f.bad(name != corev1.ResourceMemory && !huge, "reservedMemory (--reserved-memory): the limit type %q for NUMA node %d is not supported, only %v is accepted",
				name, r.NumaNode, []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceHugePagesPrefix + "<HugePageSize>"})
			f.bad(q.IsZero(), "reservedMemory (--reserved-memory): reserved memory may not be zero for NUMA node %d and resource %q", r.NumaNode, name)
			f.bad(seen[r.NumaNode][name], "reservedMemory (--reserved-memory): the reserved memory has a duplicate value for NUMA node %d and resource %q", r.NumaNode, name)
			seen[r.NumaNode][name] = true
		}
	}
}

// reserved reads what is kept from pods.
func reserved(m map[string]string) (corev1.ResourceList, error) {
	out, all := corev1.ResourceList{}, []string{string(corev1.ResourceCPU), string(corev1.ResourceMemory), string(corev1.ResourceEphemeralStorage), "pid"}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		value := m[name]
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("cannot reserve %q resource, must be one of: %q", name, all)
		}
		q, err := resource.ParseQuantity(value)
		if err != nil {
			return nil, fmt.Errorf("failed to parse quantity %q for %q resource: %w", value, name, err)
		}
		if q.Sign() < 0 {
			return nil, fmt.Errorf("resource quantity for %q cannot be negative: %v", name, value)
		}
		out[corev1.ResourceName(name)] = q
	}
	return out, nil
}

func validateLogs(f *faults, s *Settings) {
	f.bad(*s.ContainerLogMaxWorkers < 1, "containerLogMaxWorkers must be greater than or equal to 1")
	f.bad(s.ContainerLogMonitorInterval.Duration < 3*time.Second, "containerLogMonitorInterval must be a positive time duration greater than or equal to 3s")
	f.bad(*s.ContainerLogMaxFiles <= 1, "containerLogMaxFiles must be greater than 1")
	if !slices.Contains([]string{"", "text", "json"}, s.Logging.Format) {
		*f = append(*f, fieldpath.Invalid(fieldpath.NewPath("logging", "format"), s.Logging.Format, "Unsupported log format, must be one of: \"json\", \"text\""))
	}
	size, err := resource.ParseQuantity(s.ContainerLogMaxSize)
	if err != nil {
		*f = append(*f, fmt.Errorf("containerLogMaxSize (--container-log-max-size): failed to parse container log configuration \"ContainerLogMaxSize\": %q: %w", s.ContainerLogMaxSize, err))
	} else if size.Value() <= 0 {
		f.bad(true, "containerLogMaxSize (--container-log-max-size) %q must be positive", s.ContainerLogMaxSize)
	}
	dir := s.PodLogsDir
	f.bad(!filepath.IsAbs(dir), "podLogsDir (--pod-logs-dir): pod logs path %q must be absolute path", dir)
	f.bad(filepath.Clean(dir) != dir, "podLogsDir (--pod-logs-dir): pod logs path %q must be normalized", dir)
	for _, c := range dir {
		if c > unicode.MaxASCII {
			f.bad(true, "podLogsDir (--pod-logs-dir): pod logs path %q mut contains ASCII characters only", dir)
			break
		}
	}
}

// validatePaths refuses paths that would depend on where the process was started.
func validatePaths(f *faults, s *Settings) {
	for _, p := range []struct{ field, path string }{{"staticPodPath", s.StaticPodPath}, {"resolvConf", *s.ResolverConfig}} {
		f.bad(p.path != "" && !filepath.IsAbs(p.path), "%s %q must be absolute path", label(p.field), p.path)
	}
}

func validateNamespaces(f *faults, s *Settings) {
	if s.UserNamespaces == nil || s.UserNamespaces.IDsPerPod == nil {
		return
	}
	n := *s.UserNamespaces.IDsPerPod
	switch {
	case n < leastUserNamespaceIDs:
		f.bad(true, "userNamespaces.idsPerPod must not be less than %d", leastUserNamespaceIDs)
	case n%leastUserNamespaceIDs != 0:
		f.bad(true, "userNamespaces.idsPerPod must be a multiple of %d", leastUserNamespaceIDs)
	case n > math.MaxUint32:
		f.bad(true, "userNamespaces.idsPerPod must not be more than %d", int64(math.MaxUint32))
	}
}
