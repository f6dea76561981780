package kubelet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"knarr/internal/features"
	"knarr/internal/zpages"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/server"
)

// checkHost refuses a host that the settings do not want.
func (k *Kubelet) checkHost() error {
	s := k.cfg.Settings
	var errs []error
	if *s.FailCgroupV1 && !k.cgroups.V2() {
		errs = append(errs, errors.New("kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release; boot with control groups of version 2 (systemd.unified_cgroup_hierarchy=1), or set failCgroupV1 (--fail-cgroupv1) to false"))
	}
	if !k.cgroups.V2() && s.SingleProcessOOMKill != nil && !*s.SingleProcessOOMKill {
		errs = append(errs, errors.New("invalid configuration: singleProcessOOMKill must not be explicitly set to false when using cgroup v1"))
	}
	if *s.FailSwapOn && k.machine.swap > 0 {
		errs = append(errs, errors.New("running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"))
	}
	if !k.cgroups.V2() && s.MemorySwap.SwapBehavior == configuration.LimitedSwap {
		errs = append(errs, errors.New("swap feature is enabled and LimitedSwap but it is only supported with cgroupv2; set memorySwap.swapBehavior to NoSwap"))
	}
	if err := k.nodeAllocatable().Check(k.hardReserved(k.capacity())); err != nil {
		errs = append(errs, fmt.Errorf("%w Reserve less in systemReserved (--system-reserved), kubeReserved (--kube-reserved) or evictionHard (--eviction-hard)", err))
	}
	if s.ProtectKernelDefaults {
		if err := kernelDefaults("/proc/sys"); err != nil {
			errs = append(errs, fmt.Errorf("protectKernelDefaults (--protect-kernel-defaults): %w", err))
		}
	}
	return errors.Join(errs...)
}

// kernelDefaults says which settings of the kernel are not what upstream's kubelet
// wants them to be.
func kernelDefaults(root string) error {
	var errs []error
	for _, w := range []struct {
		name string
		want int
	}{
		{"vm/overcommit_memory", 1}, {"vm/panic_on_oom", 0}, {"kernel/panic", 10}, {"kernel/panic_on_oops", 1},
		{"kernel/keys/root_maxkeys", 1000000}, {"kernel/keys/root_maxbytes", 25000000},
	} {
		b, err := os.ReadFile(root + "/" + w.name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if is, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || is != w.want {
			errs = append(errs, fmt.Errorf("invalid kernel flag: %v, expected value: %v, actual value: %v; sysctl -w %s=%d", w.name, w.want, strings.TrimSpace(string(b)), strings.ReplaceAll(w.name, "/", "."), w.want))
		}
	}
	return errors.Join(errs...)
}

// eventSink is what events are written to, as many in a second as are allowed.
func (k *Kubelet) eventSink() (record.EventSink, error) {
	qps := *k.cfg.Settings.EventRecordQPS
	if qps == 0 {
		return &refusedEvents{sink: &typedcorev1.EventSinkImpl{Interface: k.client.CoreV1().Events("")}, ctx: k.ctx, news: &k.news}, nil
	}
	c := rest.CopyConfig(k.kube)
	c.QPS, c.Burst = float32(qps), int(k.cfg.Settings.EventBurst)
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	return &refusedEvents{sink: &typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")}, ctx: k.ctx, news: &k.news}, nil
}

// maxPods is how many pods the node takes.
func (k *Kubelet) maxPods() int {
	n := int(k.cfg.Settings.MaxPods)
	if each := int(k.cfg.Settings.PodsPerCore); each > 0 {
		n = min(n, each*k.machine.cpus)
	}
	return n
}

// podPids is how many processes a pod may have; 0: no bound of its own.
func (k *Kubelet) podPids() int64 { return max(*k.cfg.Settings.PodPidsLimit, 0) }

// crashDelay is how long containers that end again and again wait.
func (k *Kubelet) crashDelay() *delay {
	most := k.cfg.Settings.CrashLoopBackOff.MaxContainerRestartPeriod.Duration
	return &delay{first: min(crashFirst, most), most: most, forget: crashForgotten}
}

// limit sets how many images are pulled at once, and in a second.
func (g *pullGate) limit(s *configuration.Settings) {
	switch {
	case *s.SerializeImagePulls:
		g.slots = make(chan struct{}, 1)
	case s.MaxParallelImagePulls != nil:
		g.slots = make(chan struct{}, *s.MaxParallelImagePulls)
	}
	if qps := *s.RegistryPullQPS; qps > 0 {
		g.rate = flowcontrol.NewTokenBucketRateLimiter(float32(qps), int(s.RegistryBurst))
	}
}

// Configz are the settings as they act.
func (h host) Configz() any {
	c := h.k.cfg
	s := *c.Settings.DeepCopy()
	s.ClusterDomain, s.ResolverConfig, s.PodLogsDir, s.CgroupRoot = c.ClusterDomain, &c.ResolvConf, c.PodLogsDir, c.CgroupParent
	s.CgroupDriver = *h.k.driver.Load()
	s.ClusterDNS = nil
	for _, ip := range c.ClusterDNS {
		s.ClusterDNS = append(s.ClusterDNS, ip.String())
	}
	s.TLSCertFile, s.TLSPrivateKeyFile = c.CertFile, c.KeyFile
	if c.RuntimeEndpoint != "" {
		s.ContainerRuntimeEndpoint = c.RuntimeEndpoint
	} else {
		s.ContainerRuntimeEndpoint = "" // the runtime is in this process
	}
	address(c.Listen, &s.Address, &s.Port)
	var none int32
	s.HealthzPort = &none
	address(c.Healthz, &s.HealthzBindAddress, s.HealthzPort)
	address(c.ReadOnly, new(string), &s.ReadOnlyPort)
	return map[string]any{"kubeletconfig": s}
}

// Pages are those about the program, as far as their features are on.
func (h host) Pages() server.Pages {
	gates := features.Set(h.k.cfg.Settings.FeatureGates)
	p := server.Pages{Status: gates.Enabled(zpages.StatuszFeature)}
	if gates.Enabled(zpages.FlagzFeature) {
		p.Flags = h.k.cfg.Flags
	}
	return p
}

// address takes an address to listen on apart.
func address(listen string, host *string, port *int32) {
	h, p, err := net.SplitHostPort(listen)
	n, perr := strconv.ParseInt(p, 10, 32)
	if err != nil || perr != nil {
		*port = 0
		return
	}
	if h == "" {
		h = "0.0.0.0"
	}
	*host, *port = h, int32(n)
}
