package configuration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A Flag is one of upstream's that sets a field.
type Flag struct {
	// Name is the flag's, Field that of what it sets, with a dot before one of an object.
	Name, Field string
	// Help says what it does, with its unit in backquotes.
	Help string
	// Bool says that the flag alone means true.
	Bool bool
	read func(string) (any, error)
}

// Flags are all of them.
var Flags = []Flag{
	{"address", "address", "`address` to serve on", false, text},
	{"port", "port", "`port` to serve on", false, number},
	{"read-only-port", "readOnlyPort", "`port` of what everybody may read; 0: none", false, number},
	{"enable-server", "enableServer", "serve at all", true, boolean},
	{"healthz-bind-address", "healthzBindAddress", "`address` of /healthz for everybody", false, text},
	{"healthz-port", "healthzPort", "`port` of /healthz for everybody; 0: none", false, number},
	{"container-runtime-endpoint", "containerRuntimeEndpoint", "`socket` of the CRI runtime", false, text},
	{"image-service-endpoint", "imageServiceEndpoint", "`socket` of images", false, text},
	{"runtime-request-timeout", "runtimeRequestTimeout", "`time` that a call to the runtime may take", false, duration},
	{"tls-cert-file", "tlsCertFile", "`file` of the serving certificate (default: one made in memory)", false, text},
	{"tls-private-key-file", "tlsPrivateKeyFile", "`file` of its key", false, text},
	{"tls-cipher-suites", "tlsCipherSuites", "`suites` of TLS up to 1.2", false, list},
	{"tls-min-version", "tlsMinVersion", "least `version` of TLS", false, text},
	{"rotate-certificates", "rotateCertificates", "renew the client certificate", true, boolean},
	{"rotate-server-certificates", "serverTLSBootstrap", "request the serving certificate", true, boolean},
	{"client-ca-file", "authentication.x509.clientCAFile", "`file` of who signs client certificates", false, text},
	{"anonymous-auth", "authentication.anonymous.enabled", "let users in who do not say who they are", true, boolean},
	{"authentication-token-webhook", "authentication.webhook.enabled", "ask the API server whose tokens are", true, boolean},
	{"authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL", "`time` to keep answers", false, duration},
	{"authorization-mode", "authorization.mode", "`mode`: Webhook, which asks the API server, or AlwaysAllow", false, text},
	{"authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL", "`time` to keep permissions", false, duration},
	{"authorization-webhook-cache-unauthorized-ttl", "authorization.webhook.cacheUnauthorizedTTL", "`time` to keep refusals", false, duration},
	{"enable-debugging-handlers", "enableDebuggingHandlers", "serve logs, exec, attach and port-forward", true, boolean},
	{"contention-profiling", "enableContentionProfiling", "profile locks", true, boolean},
	{"cluster-dns", "clusterDNS", "`addresses` pods resolve names with", false, list},
	{"cluster-domain", "clusterDomain", "`domain` of names in the cluster", false, text},
	{"resolv-conf", "resolvConf", "`file` that names the servers for other names", false, text},
	{"pod-manifest-path", "staticPodPath", "`directory` of static pods' manifests", false, text},
	{"manifest-url", "staticPodURL", "`URL` of static pods' manifests", false, text},
	{"manifest-url-header", "staticPodURLHeader", "`headers` to ask for it with, name:value", false, headers},
	{"file-check-frequency", "fileCheckFrequency", "`time` between two looks at manifests", false, duration},
	{"http-check-frequency", "httpCheckFrequency", "`time` between two requests for manifests", false, duration},
	{"sync-frequency", "syncFrequency", "`time` between two looks at a pod", false, duration},
	{"pod-logs-dir", "podLogsDir", "`directory` of containers' logs", false, text},
	{"container-log-max-size", "containerLogMaxSize", "`size` at which a log is rotated", false, text},
	{"container-log-max-files", "containerLogMaxFiles", "`number` of files of one log", false, number},
	{"cgroup-root", "cgroupRoot", "`group` that pods' groups are below", false, text},
	{"cgroup-driver", "cgroupDriver", "`driver` of control groups: cgroupfs, systemd; another runtime than knarr's own says itself which", false, text},
	{"cgroups-per-qos", "cgroupsPerQOS", "make groups for classes and pods", true, boolean},
	{"kubelet-cgroups", "kubeletCgroups", "`group` to run in", false, text},
	{"system-cgroups", "systemCgroups", "`group` of what is in none", false, text},
	{"fail-cgroupv1", "failCgroupV1", "do not run on control groups of version 1", true, boolean},
	{"fail-swap-on", "failSwapOn", "do not run while there is swap", true, boolean},
	{"protect-kernel-defaults", "protectKernelDefaults", "do not run with other settings of the kernel than upstream's", true, boolean},
	{"max-pods", "maxPods", "`number` of pods the node takes", false, number},
	{"pods-per-core", "podsPerCore", "`number` of pods for each core; 0: any", false, number},
	{"pod-max-pids", "podPidsLimit", "`number` of processes of one pod; -1: as many as all pods may have, by default a quarter of these", false, number},
	{"pod-cidr", "podCIDR", "`range` of pods' addresses", false, text},
	{"hairpin-mode", "hairpinMode", "`mode` of pods that reach themselves", false, text},
	{"node-status-update-frequency", "nodeStatusUpdateFrequency", "`time` between two looks at the node", false, duration},
	{"node-status-max-images", "nodeStatusMaxImages", "`number` of images the Node shows; -1: all", false, number},
	{"register-node", "registerNode", "make the Node", true, boolean},
	{"register-with-taints", "registerWithTaints", "`taints` of a new Node, key=value:effect", false, taints},
	{"provider-id", "providerID", "`ID` of this node's instance with the cloud provider", false, text},
	{"event-qps", "eventRecordQPS", "`number` of events in a second; 0: any", false, number},
	{"event-burst", "eventBurst", "`number` of events at once", false, number},
	{"kube-api-qps", "kubeAPIQPS", "`number` of requests in a second; 0: any", false, number},
	{"kube-api-burst", "kubeAPIBurst", "`number` of requests at once", false, number},
	{"kube-api-content-type", "contentType", "`type` of requests", false, text},
	{"registry-qps", "registryPullQPS", "`number` of pulls in a second; 0: any", false, number},
	{"registry-burst", "registryBurst", "`number` of pulls at once", false, number},
	{"serialize-image-pulls", "serializeImagePulls", "pull one image after the other", true, boolean},
	{"image-gc-high-threshold", "imageGCHighThresholdPercent", "`percentage` of its disk above which unused images go", false, number},
	{"image-gc-low-threshold", "imageGCLowThresholdPercent", "`percentage` down to which they go", false, number},
	{"minimum-image-ttl-duration", "imageMinimumGCAge", "`time` that an unused image stays at least", false, duration},
	{"cpu-cfs-quota", "cpuCFSQuota", "keep containers to their limits of CPU", true, boolean},
	{"cpu-cfs-quota-period", "cpuCFSQuotaPeriod", "`time` in which a limit of CPU counts", false, duration},
	{"cpu-manager-policy", "cpuManagerPolicy", "`policy` of CPUs: none, static", false, text},
	{"cpu-manager-policy-options", "cpuManagerPolicyOptions", "`options` of the policy, key=value", false, pairs},
	{"cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", "`time` between two looks at containers' CPUs", false, duration},
	{"memory-manager-policy", "memoryManagerPolicy", "`policy` of memory: None, Static", false, text},
	{"reserved-memory", "reservedMemory", "`memory` of each NUMA node that is not for pods, 0:memory=1Gi", false, reservedMemory},
	{"topology-manager-policy", "topologyManagerPolicy", "`policy`: none, best-effort, restricted, single-numa-node", false, text},
	{"topology-manager-policy-options", "topologyManagerPolicyOptions", "`options` of the policy, key=value", false, pairs},
	{"topology-manager-scope", "topologyManagerScope", "`scope`: container, pod", false, text},
	{"qos-reserved", "qosReserved", "`percentages` of requests that are kept from lower classes", false, pairs},
	{"system-reserved", "systemReserved", "`resources` for the system, cpu=200m,memory=500Mi,ephemeral-storage=1Gi,pid=1000", false, pairs},
	{"kube-reserved", "kubeReserved", "`resources` for Kubernetes itself", false, pairs},
	{"reserved-cpus", "reservedSystemCPUs", "`CPUs` for both, such as 0-1", false, text},
	{"system-reserved-cgroup", "systemReservedCgroup", "`group` of the system", false, text},
	{"kube-reserved-cgroup", "kubeReservedCgroup", "`group` of Kubernetes itself", false, text},
	{"enforce-node-allocatable", "enforceNodeAllocatable", "`groups` that get limits: none, pods, system-reserved, kube-reserved, and the last two with -compressible", false, list},
	{"eviction-hard", "evictionHard", "`thresholds` below which pods go at once, memory.available<1Gi", false, thresholds},
	{"eviction-soft", "evictionSoft", "`thresholds` below which they go after a while", false, thresholds},
	{"eviction-soft-grace-period", "evictionSoftGracePeriod", "`times` after which, memory.available=1m30s", false, pairs},
	{"eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", "`seconds` that they then get at most to end", false, number},
	{"eviction-minimum-reclaim", "evictionMinimumReclaim", "`amounts` to reclaim at least, imagefs.available=2Gi", false, pairs},
	{"eviction-pressure-transition-period", "evictionPressureTransitionPeriod", "`time` that a condition stays after the pressure has gone", false, duration},
	{"kernel-memcg-notification", "kernelMemcgNotification", "let the kernel tell when memory is short", true, boolean},
	{"allowed-unsafe-sysctls", "allowedUnsafeSysctls", "`sysctls` that pods may set besides the safe ones", false, list},
	{"seccomp-default", "seccompDefault", "give containers the runtime's seccomp profile unless they ask for another", true, boolean},
	{"local-storage-capacity-isolation", "localStorageCapacityIsolation", "count and limit ephemeral storage", true, boolean},
	{"enable-controller-attach-detach", "enableControllerAttachDetach", "leave attaching volumes to controllers", true, boolean},
	{"volume-plugin-dir", "volumePluginDir", "`directory` of FlexVolume plugins", false, text},
	{"volume-stats-agg-period", "volumeStatsAggPeriod", "`time` between two measurements of volumes", false, duration},
	{"streaming-connection-idle-timeout", "streamingConnectionIdleTimeout", "`time` after which idle streams end", false, duration},
	{"make-iptables-util-chains", "makeIPTablesUtilChains", "write rules of iptables", true, boolean},
	{"oom-score-adj", "oomScoreAdj", "`number` by which the kernel spares this process", false, number},
	{"max-open-files", "maxOpenFiles", "`number` of files this process may open", false, number},
	{"runonce", "runOnce", "run the pods there are, then end; not any more", true, boolean},
	{"feature-gates", "featureGates", "`features` on or off, key=true", false, switches},
}

// Choices are what flags may be set to of which there are few values.
var Choices = map[string][]string{
	"cgroup-driver": CgroupDrivers, "cpu-manager-policy": {"none", "static"}, "memory-manager-policy": {"None", "Static"},
	"topology-manager-policy": {"none", "best-effort", "restricted", "single-numa-node"}, "topology-manager-scope": {"container", "pod"},
	"authorization-mode": {"AlwaysAllow", "Webhook"},
}

// FlagNamed is the flag of a name, nil if there is none.
func FlagNamed(name string) *Flag {
	if i := slices.IndexFunc(Flags, func(f Flag) bool { return f.Name == name }); i >= 0 {
		return &Flags[i]
	}
	return nil
}

// label is a field with the flag that sets it, if there is one.
func label(field string) string {
	for _, f := range Flags {
		if f.Field == field {
			return field + " (--" + f.Name + ")"
		}
	}
	return field
}

// Set adds what a flag says.
func (d *Document) Set(f *Flag, value string) error {
	v, err := f.read(value)
	if err != nil {
		return fmt.Errorf("--%s: %w", f.Name, err)
	}
	d.Put(f.Field, v)
	if _, _, err := typed(d.values); err != nil {
		return fmt.Errorf("--%s: %w", f.Name, err)
	}
	return nil
}

// Add is Set, but that it adds to what a list or an object has if more says so: that is
// how a flag is given several times.
func (d *Document) Add(f *Flag, value string, more bool) error {
	before, had := d.lookup(f.Field)
	if err := d.Set(f, value); err != nil || !more || !had {
		return err
	}
	now, _ := d.lookup(f.Field)
	switch is := now.(type) {
	case map[string]any:
		if old, ok := before.(map[string]any); ok {
			both := map[string]any{}
			merge(both, old)
			merge(both, is)
			d.Put(f.Field, both)
		}
	case []any:
		if old, ok := before.([]any); ok {
			d.Put(f.Field, append(slices.Clone(old), is...))
		}
	}
	return nil
}

// Remove takes back what was said of a field.
func (d *Document) Remove(field string) {
	before, last := "", field
	if at := strings.LastIndexByte(field, '.'); at >= 0 {
		before, last = field[:at], field[at+1:]
	}
	object := any(d.values)
	if before != "" {
		object, _ = d.lookup(before)
	}
	if values, ok := object.(map[string]any); ok {
		delete(values, last)
	}
}

// Put sets one field; objects replace those that are there.
func (d *Document) Put(field string, v any) {
	if d.values == nil {
		d.values = map[string]any{}
	}
	at := d.values
	parts := strings.Split(field, ".")
	for _, part := range parts[:len(parts)-1] {
		below, ok := at[part].(map[string]any)
		if !ok {
			below = map[string]any{}
			at[part] = below
		}
		at = below
	}
	at[parts[len(parts)-1]] = v
}

func text(s string) (any, error) { return s, nil }

func boolean(s string) (any, error) { return strconv.ParseBool(s) }

func number(s string) (any, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%q is not a whole number", s)
	}
	return n, nil
}

func duration(s string) (any, error) {
	d, err := time.ParseDuration(s)
	return d.String(), err
}

func list(s string) (any, error) {
	out := []any{}
	for one := range strings.SplitSeq(s, ",") {
		if one = strings.TrimSpace(one); one != "" {
			out = append(out, one)
		}
	}
	return out, nil
}

func pairs(s string) (any, error)      { return split(s, "=") }
func thresholds(s string) (any, error) { return split(s, "<") }

func split(s, sep string) (map[string]any, error) {
	out := map[string]any{}
	for one := range strings.SplitSeq(s, ",") {
		if one == "" {
			continue
		}
		key, value, ok := strings.Cut(one, sep)
		if !ok {
			return nil, fmt.Errorf("malformed pair, expect string%sstring", sep)
		}
		out[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return out, nil
}

func switches(s string) (any, error) {
	all, err := split(s, "=")
	for key, v := range all {
		on, perr := strconv.ParseBool(v.(string))
		if perr != nil {
			return nil, fmt.Errorf("invalid value of %s=%v, err: %w", key, v, perr)
		}
		all[key] = on
	}
	return all, err
}

func headers(s string) (any, error) {
	out := map[string]any{}
	for one := range strings.SplitSeq(s, ",") {
		if one == "" {
			continue
		}
		key, value, ok := strings.Cut(one, ":")
		if !ok {
			return nil, fmt.Errorf("malformed pair, expect string:string")
		}
		key = strings.TrimSpace(key)
		have, _ := out[key].([]any)
		out[key] = append(have, strings.TrimSpace(value))
	}
	return out, nil
}

func taints(s string) (any, error) {
	out := []corev1.Taint{}
	for one := range strings.SplitSeq(s, ",") {
		if one == "" {
			continue
		}
		kv, effect, ok := strings.Cut(one, ":")
		if !ok {
			return nil, fmt.Errorf("invalid taint spec: %v", one)
		}
		key, value, _ := strings.Cut(kv, "=")
		out = append(out, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return plain(out)
}

func reservedMemory(s string) (any, error) {
	type reservation struct {
		NumaNode int32               `json:"numaNode"`
		Limits   corev1.ResourceList `json:"limits"`
	}
	var out []reservation
	for one := range strings.SplitSeq(s, ",") {
		node, limit, colon := strings.Cut(one, ":")
		if !colon {
			if len(out) == 0 {
				return nil, fmt.Errorf("the reserved memory has incorrect format, expected numaNodeID:type=quantity[,type=quantity...], got %s", one)
			}
			limit = node
		} else {
			n, err := strconv.ParseInt(node, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("failed to convert the NUMA node ID, exptected integer, got %s", node)
			}
			out = append(out, reservation{int32(n), corev1.ResourceList{}})
		}
		name, value, ok := strings.Cut(limit, "=")
		if !ok {
			return nil, fmt.Errorf("the reserved limit has incorrect value, expected type=quantatity, got %s", limit)
		}
		q, err := resource.ParseQuantity(value)
		if err != nil {
			return nil, fmt.Errorf("failed to parse the quatity, expected quantity, got %s", value)
		}
		out[len(out)-1].Limits[corev1.ResourceName(name)] = q
	}
	return plain(out)
}

// plain is a value as JSON has it.
func plain(v any) (out any, err error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return out, json.Unmarshal(b, &out)
}
