package configuration

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const head = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLaterWordsWin: the files of a directory change the file, in the order of their
// names, and flags change both.
func TestLaterWordsWin(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "kubelet.yaml"), head+"maxPods: 50\nevictionHard: {memory.available: 1Gi, nodefs.available: 5%}\nclusterDNS: [10.0.0.10]\n")
	drop := filepath.Join(dir, "kubelet.d")
	write(t, filepath.Join(drop, "20-b.conf"), head+"maxPods: 70\nclusterDNS: [10.0.0.20]\n")
	write(t, filepath.Join(drop, "10-a.conf"), head+"maxPods: 60\nevictionHard: {memory.available: 2Gi}\nsyncFrequency: 30s\n")
	write(t, filepath.Join(drop, "30-c", "c.conf"), head+"podsPerCore: 7\n")
	write(t, filepath.Join(drop, "README"), "not read")
	var d Document
	if err := d.File(file); err != nil {
		t.Fatal(err)
	}
	if err := d.Dir(drop); err != nil {
		t.Fatal(err)
	}
	if err := d.Set(FlagNamed("system-reserved"), "cpu=200m,memory=1Gi"); err != nil {
		t.Fatal(err)
	}
	if err := d.Set(FlagNamed("max-pods"), "80"); err != nil {
		t.Fatal(err)
	}
	s, err := d.Settings()
	if err != nil {
		t.Fatal(err)
	}
	if s.MaxPods != 80 || s.PodsPerCore != 7 || !slices.Equal(s.ClusterDNS, []string{"10.0.0.20"}) || s.SyncFrequency.Duration != 30*time.Second {
		t.Errorf("%+v", s)
	}
	if !reflect.DeepEqual(s.EvictionHard, map[string]string{"memory.available": "2Gi", "nodefs.available": "5%"}) {
		t.Errorf("thresholds %v", s.EvictionHard)
	}
	if r := Reserved(s.SystemReserved); r.Cpu().MilliValue() != 200 || r.Memory().Value() != 1<<30 {
		t.Errorf("reserved %v", r)
	}
	if !d.Given("maxPods") || d.Given("maxOpenFiles") {
		t.Error("what was values is not known")
	}
	if got := d.Idle(false); len(got) != 1 || !strings.HasPrefix(got[0], "syncFrequency (") {
		t.Errorf("idle %v", got)
	}
}

// TestBursts: a burst acts beside its rate alone, which is none by default.
func TestBursts(t *testing.T) {
	for text, want := range map[string]string{
		"registryBurst: 20": "registryBurst (nothing is held back without registryPullQPS)", "eventBurst: 1": "eventBurst (nothing is held back without eventRecordQPS)",
		"registryBurst: 20\nregistryPullQPS: 0": "registryBurst (nothing is held back without registryPullQPS)",
		"kubeAPIBurst: 20\nkubeAPIQPS: 5":       "",
	} {
		var d Document
		if err := d.File(write(t, filepath.Join(t.TempDir(), "f"), head+text+"\n")); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(d.Idle(false), ";"); got != want {
			t.Errorf("%s: idle %q, want %q", text, got, want)
		}
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"another kind":    {"kind: Pod\napiVersion: v1\n", "unknown apiVersion/kind"},
		"no kind":         {"maxPods: 1\n", "unknown apiVersion/kind: kind is missing"},
		"no version":      {"kind: KubeletConfiguration\nmaxPods: 1\n", `unknown apiVersion/kind: apiVersion is missing; a file has to begin with kind "KubeletConfiguration" of version "kubelet.config.k8s.io/v1beta1"`},
		"not YAML":        {"kind: [", "did not find expected node content"},
		"another type":    {head + "maxPods: many\n", "maxPods (--max-pods): json: cannot unmarshal string into Go struct field"},
		"the same twice":  {head + "maxPods: 1\nmaxPods: 2\n", `key "maxPods" already set`},
		"a bad duration":  {head + "syncFrequency: soon\n", `syncFrequency (--sync-frequency): time: invalid duration "soon"`},
		"a bad unit":      {head + "shutdownGracePeriod: 10x\n", `shutdownGracePeriod: time: unknown unit "x" in duration "10x"`},
		"not an object":   {"[1]", "cannot unmarshal array"},
		"a very big file": {head + "# " + strings.Repeat("x", maxFile), "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			var d Document
			err := d.File(write(t, filepath.Join(t.TempDir(), "f"), c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "failed to load kubelet config file, path: ") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestFieldOfANewerVersion: it is left out, the rest counts. The log names the file.
func TestFieldOfANewerVersion(t *testing.T) {
	var log strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	var d Document
	file := write(t, filepath.Join(t.TempDir(), "f"), head+"maxPods: 3\nnewSetting: true\n")
	if err := d.File(file); err != nil {
		t.Fatal(err)
	}
	if logged := log.String(); !strings.Contains(logged, "file="+file) || !strings.Contains(logged, "newSetting") {
		t.Errorf("logged %q", logged)
	}
	if s, err := d.Settings(); err != nil || s.MaxPods != 3 {
		t.Errorf("%v, %v", s, err)
	}
}

// TestMisspelt: what is left out of a file is in the log, with what was meant.
func TestMisspelt(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a field":           {head + "maxPod: 3\n", `msg="kubelet: using lenient decoding as strict decoding failed" file=FILE err="unknown field \"maxPod\" is ignored; did you mean \"maxPods\"?"`},
		"a field below":     {head + "authentication: {anonymus: {enabled: true}}\n", `unknown field \"authentication.anonymus\" is ignored; did you mean \"anonymous\"?`},
		"further documents": {head + "maxPods: 3\n---\nkind: ClusterConfiguration\n", `msg="kubelet: only the first document of this file is read" file=FILE`},
		"nothing":           {head + "maxPods: 3\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			before := slog.Default()
			slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
			defer slog.SetDefault(before)
			file := write(t, filepath.Join(t.TempDir(), "f"), c.text)
			var d Document
			if err := d.File(file); err != nil {
				t.Fatal(err)
			}
			if got := strings.ReplaceAll(log.String(), file, "FILE"); c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("logged %s, want %s", got, c.want)
			}
		})
	}
}

// TestRelativePaths: those of the file are from its directory, as upstream has it.
func TestRelativePaths(t *testing.T) {
	dir := t.TempDir()
	var d Document
	if err := d.File(write(t, filepath.Join(dir, "f"), head+"staticPodPath: manifests\nresolvConf: ''\ntlsCertFile: /tls.crt\nauthentication: {x509: {clientCAFile: ../ca.crt}}\n")); err != nil {
		t.Fatal(err)
	}
	s, err := d.Settings()
	if err != nil {
		t.Fatal(err)
	}
	if s.StaticPodPath != filepath.Join(dir, "manifests") || *s.ResolverConfig != "" || s.TLSCertFile != "/tls.crt" || s.Authentication.X509.ClientCAFile != filepath.Join(filepath.Dir(dir), "ca.crt") {
		t.Errorf("%q, %q, %q, %q", s.StaticPodPath, *s.ResolverConfig, s.TLSCertFile, s.Authentication.X509.ClientCAFile)
	}
}

// field finds the kind of a field by its name, as JSON has it.
func field(of reflect.Type, name string) (reflect.Type, bool) {
	for part := range strings.SplitSeq(name, ".") {
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		found := false
		for i := range of.NumField() {
			if tag, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); tag == part {
				of, found = of.Field(i).Type, true
				break
			}
		}
		if !found {
			return nil, false
		}
	}
	return of, true
}

// TestTablesNameFields: every flag and every idle setting is about a field there is.
func TestTablesNameFields(t *testing.T) {
	settings := reflect.TypeFor[Settings]()
	for name := range idle {
		if _, ok := field(settings, name); !ok {
			t.Errorf("idle: no field %q", name)
		}
	}
	for _, name := range paths {
		if _, ok := field(settings, name); !ok {
			t.Errorf("paths: no field %q", name)
		}
	}
	seen := map[string]bool{}
	for _, f := range Flags {
		if _, ok := field(settings, f.Field); !ok {
			t.Errorf("--%s: no field %q", f.Name, f.Field)
		}
		if seen[f.Name] || seen[f.Field] {
			t.Errorf("--%s or its field %s comes twice", f.Name, f.Field)
		}
		seen[f.Name], seen[f.Field] = true, true
	}
}

func TestFlagsThatAreRefused(t *testing.T) {
	for _, c := range []struct{ flag, value, want string }{
		{"max-pods", "many", `--max-pods: "many" is not a whole number`},
		{"max-pods", "9999999999", "--max-pods: json: cannot unmarshal number"},
		{"eviction-hard", "memory.available=1Gi", "--eviction-hard: malformed pair, expect string<string"},
		{"fail-swap-on", "maybe", "--fail-swap-on: strconv.ParseBool"},
		{"reserved-memory", "x:memory=1Gi", "--reserved-memory: failed to convert the NUMA node ID"},
		{"register-with-taints", "a=b", "--register-with-taints: invalid taint spec: a=b"},
	} {
		var d Document
		if err := d.Set(FlagNamed(c.flag), c.value); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s=%s: %v", c.flag, c.value, err)
		}
	}
}

func TestFlagGivenTwice(t *testing.T) {
	var d Document
	for i, value := range []string{"memory.available<1Gi", "nodefs.available<5%"} {
		if err := d.Add(FlagNamed("eviction-hard"), value, i > 0); err != nil {
			t.Fatal(err)
		}
	}
	s, err := d.Settings()
	if err != nil || len(s.EvictionHard) != 2 {
		t.Errorf("%v, %v", s.EvictionHard, err)
	}
}

func TestValidation(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"tracing: {samplingRatePerMillion: -1}", "tracing.samplingRatePerMillion: Invalid value: -1: sampling rate must be positive"},
		{"tracing: {endpoint: 'http://collector:4317'}", "unsupported scheme: http.  Options are none, dns, unix, or unix-abstract."},
		{"nodeLeaseDurationSeconds: -1", "invalid configuration: nodeLeaseDurationSeconds must be greater than 0"},
		{"memoryReservationPolicy: TieredReservation", `invalid configuration: memoryReservationPolicy "TieredReservation" requires MemoryQoS feature gate to be enabled`},
		{"maxPods: -1", "invalid configuration: maxPods (--max-pods) -1 must not be a negative number"},
		{"imageGCHighThresholdPercent: 60\nimageGCLowThresholdPercent: 70", "invalid configuration: imageGCLowThresholdPercent (--image-gc-low-threshold) 70 must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) 60"},
		{"imageMaximumGCAge: 1m", "invalid configuration: imageMaximumGCAge 1m0s must be greater than imageMinimumGCAge 2m0s"},
		{"topologyManagerPolicy: most", `invalid configuration: topologyManagerPolicy (--topology-manager-policy) "most" must be one of: ["none" "best-effort" "restricted" "single-numa-node"]`},
		{"enforceNodeAllocatable: [system-reserved]", `invalid configuration: systemReservedCgroup (--system-reserved-cgroup) must be specified when "system-reserved" or "system-reserved-compressible" included in enforceNodeAllocatable (--enforce-node-allocatable)`},
		{"enforceNodeAllocatable: [pods, none]", `invalid configuration: enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements when "none" is specified`},
		{"shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 20s", "invalid configuration: shutdownGracePeriodCriticalPods {20s} must be <= shutdownGracePeriod {10s}"},
		{"memorySwap: {swapBehavior: All}", `invalid configuration: memorySwap.swapBehavior "All" must be one of: "", "LimitedSwap" or "NoSwap"`},
		{"evictionSoft: {memory.available: 1Gi}", "evictionSoft (--eviction-soft): grace period must be specified for the soft eviction threshold memory.available"},
		{"evictionHard: {memory.free: 1Gi}", `evictionHard (--eviction-hard): unsupported eviction signal memory.free, must be one of: ["memory.available" `},
		{"evictionSoftGracePeriod: {memory.available: 10x}", `evictionSoftGracePeriod (--eviction-soft-grace-period): eviction grace period memory.available: time: unknown unit "x" in duration "10x"`},
		{"systemReserved: {gpu: '1'}", `systemReserved (--system-reserved): cannot reserve "gpu" resource, must be one of: ["cpu" "memory" "ephemeral-storage" "pid"]`},
		{"kubeReserved: {memory: 1GB}", `kubeReserved (--kube-reserved): failed to parse quantity "1GB" for "memory" resource: quantities must match`},
		{"cpuManagerPolicy: Static", `cpuManagerPolicy (--cpu-manager-policy): unknown policy: "Static", must be one of: ["none" "static"]`},
		{"memoryManagerPolicy: static", `memoryManagerPolicy (--memory-manager-policy): unknown policy: "static", must be one of: ["None" "Static"]`},
		{"authorization: {mode: RBAC}", `authorization.mode (--authorization-mode): unknown authorization mode RBAC, must be one of: ["AlwaysAllow" "Webhook"]`},
		{"tlsCipherSuites: [TLS_AES_128_GCM_SHA265]", `tlsCipherSuites (--tls-cipher-suites): Cipher suite TLS_AES_128_GCM_SHA265 not supported or doesn't exist; did you mean "TLS_AES_128_GCM_SHA256"?`},
		{"featureGates: {MemoryQos: true}", `featureGates (--feature-gates): unrecognized feature gate: MemoryQos; did you mean "MemoryQoS"?`},
		{"staticPodPath: manifests", `invalid configuration: staticPodPath (--pod-manifest-path) "manifests" must be absolute path`},
		{"resolvConf: resolv.conf", `invalid configuration: resolvConf (--resolv-conf) "resolv.conf" must be absolute path`},
		{"kubeReserved: {memory: -1Gi}", `kubeReserved (--kube-reserved): resource quantity for "memory" cannot be negative: -1Gi`},
		{"reservedSystemCPUs: x", "invalid configuration: unable to parse reservedSystemCPUs (--reserved-cpus) x, error: "},
		{"serializeImagePulls: true\nmaxParallelImagePulls: 3", "invalid configuration: maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false"},
		{"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [\"a:1\"]", "invalid configuration: invalid image pattern in `preloadedImagesVerificationAllowlist`: neither tag nor digest is accepted in an image reference: a:1"},
		{"containerLogMaxFiles: 1", "invalid configuration: containerLogMaxFiles must be greater than 1"},
		{"podLogsDir: logs", `podLogsDir (--pod-logs-dir): pod logs path "logs" must be absolute path`},
		{"userNamespaces: {idsPerPod: 65537}", "invalid configuration: userNamespaces.idsPerPod must be a multiple of 65536"},
		{"registerWithTaints: [{key: '', effect: NoSchedule}]", "registerWithTaints (--register-with-taints): invalid taint: :NoSchedule, name part must be non-empty"},
		{"registerWithTaints: [{key: a, effect: NoSched}]", `registerWithTaints (--register-with-taints): invalid taint: a:NoSched, effect "NoSched" must be one of: ["NoSchedule" "PreferNoSchedule" "NoExecute"]`},
		{"memoryThrottlingFactor: 1.5", "invalid configuration: memoryThrottlingFactor 1.5 must be greater than 0 and less than or equal to 1.0"},
		{"crashLoopBackOff: {maxContainerRestartPeriod: 10m}", "invalid configuration: CrashLoopBackOff.MaxContainerRestartPeriod (got: 600 seconds) must be set between 1s and 300s"},
		{"reservedMemory: [{numaNode: 0, limits: {cpu: '1'}}]", `reservedMemory (--reserved-memory): the limit type "cpu" for NUMA node 0 is not supported`},
		{"tlsMinVersion: VersionTLS9", `tlsMinVersion (--tls-min-version): unknown tls version "VersionTLS9", must be one of: ["VersionTLS10" "VersionTLS11" "VersionTLS12" "VersionTLS13"]`},
		{"cpuCFSQuotaPeriod: 50ms\nfeatureGates: {CustomCPUCFSQuotaPeriod: false}", "invalid configuration: cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {50ms} requires feature gate CustomCPUCFSQuotaPeriod"},
		{"cpuCFSQuotaPeriod: 100ms\nfeatureGates: {CustomCPUCFSQuotaPeriod: false}", ""},
		{"serverTLSBootstrap: true\nfeatureGates: {RotateKubeletServerCertificate: false}", "invalid configuration: serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate"},
		{"shutdownGracePeriod: 10s\nfeatureGates: {GracefulNodeShutdown: false, GracefulNodeShutdownBasedOnPodPriority: false}", "invalid configuration: specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate GracefulNodeShutdown"},
		{"shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 2}]\nfeatureGates: {GracefulNodeShutdownBasedOnPodPriority: false}", "invalid configuration: Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority"},
		{"crashLoopBackOff: {maxContainerRestartPeriod: 1m}\nfeatureGates: {KubeletCrashLoopBackOffMax: false}", "invalid configuration: FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not be set"},
		{"imagePullCredentialsVerificationPolicy: AlwaysVerify\nfeatureGates: {KubeletEnsureSecretPulledImages: false}", "invalid configuration: `imagePullCredentialsVerificationPolicy` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled"},
		{"preloadedImagesVerificationAllowlist: [a]\nfeatureGates: {KubeletEnsureSecretPulledImages: false}", "invalid configuration: `preloadedImagesVerificationAllowlist` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled"},
		{"featureGates: {AllBeta: false}", ""},
		{"serverTLSBootstrap: true\nfeatureGates: {AllBeta: false}", "serverTLSBootstrap true requires feature gate"},
		{"logging: {format: yaml}", `logging.format: Invalid value: "yaml": Unsupported log format, must be one of: "json", "text"`},
		{"runOnce: true", "invalid configuration: runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set"},
	} {
		values, _, err := decode([]byte(head + c.text))
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		d := Document{values}
		_, err = d.Settings()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.text, err)
		}
	}
}

// TestDefaultEviction: said thresholds stand alone unless they are to be merged.
func TestDefaultEviction(t *testing.T) {
	for text, want := range map[string]int{
		"": 5, "evictionHard: {}": 0, "evictionHard: {memory.available: 1Gi}": 1,
		"evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true": 5,
	} {
		values, _, err := decode([]byte(head + text))
		if err != nil {
			t.Fatal(err)
		}
		d := Document{values}
		s, err := d.Settings()
		if err != nil || len(s.EvictionHard) != want {
			t.Errorf("%q: %v, %v", text, s.EvictionHard, err)
		}
	}
}

// FuzzDecode: no file makes the kubelet fail otherwise than by an error.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(head + "maxPods: 1\nevictionHard: {memory.available: 1Gi}\n"))
	f.Add([]byte(`{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1","systemReserved":{"cpu":"1e9999"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if values, _, err := decode(b); err == nil {
			d := Document{values}
			_, _ = d.Settings()
			d.Idle(false)
		}
	})
}

// TestFeatureGates: those of upstream are known, what they cannot be is refused, and what
// changes nothing is named.
func TestFeatureGates(t *testing.T) {
	for text, want := range map[string]struct{ err, idle string }{
		"MemoryQoS: true":                 {"", ""},
		"InPlacePodVerticalScaling: true": {"", ""},
		"AllAlpha: true":                  {"", ""},
		"KubeletPSI: false":               {"cannot set feature gate KubeletPSI to false, feature is locked to true", ""},
		"SidecarContainers: false":        {"cannot set feature gate SidecarContainers to false, feature is locked to true", ""},
		"Gardening: true":                 {"unrecognized feature gate: Gardening", ""},
		"ContainerRestartRules: false":    {"", "featureGates: ContainerRestartRules=false (it is always as by default)"},
	} {
		var d Document
		if err := d.File(write(t, filepath.Join(t.TempDir(), "f"), head+"featureGates: {"+text+"}\n")); err != nil {
			t.Fatal(err)
		}
		_, err := d.Settings()
		if got := fmt.Sprint(err); (want.err == "") != (err == nil) || err != nil && !strings.Contains(got, want.err) {
			t.Errorf("%s: %v, want %q", text, err, want.err)
		}
		if got := strings.Join(d.Idle(false), ";"); err == nil && got != want.idle {
			t.Errorf("%s: idle %q, want %q", text, got, want.idle)
		}
	}
}

// TestPodPidsLimit: what is not said is left for the node to decide, any negative number is none.
func TestPodPidsLimit(t *testing.T) {
	for text, want := range map[string]*int64{"": nil, "podPidsLimit: -5": new(int64(-1)), "podPidsLimit: 0": new(int64(0)), "podPidsLimit: 100": new(int64(100))} {
		var d Document
		if err := d.File(write(t, filepath.Join(t.TempDir(), "kubelet.yaml"), head+text+"\n")); err != nil {
			t.Fatal(err)
		}
		s, err := d.Settings()
		if err != nil {
			t.Fatal(err)
		}
		if (s.PodPidsLimit == nil) != (want == nil) || want != nil && *s.PodPidsLimit != *want {
			t.Errorf("%q: %v", text, s.PodPidsLimit)
		}
	}
}
