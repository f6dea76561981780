package controllerflags

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"knarr/controlplane/controllermanager"
	"knarr/controlplane/controllermanager/endpointslice"
	"knarr/controlplane/controllermanager/endpointslicemirroring"
	"knarr/controlplane/controllermanager/nodelifecycle"
)

// TestParse: settings reach the controller manager, and the rest is as upstream's.
func TestParse(t *testing.T) {
	c, err := Parse([]string{"controllers=*,-ttl-controller", "--concurrent-deployment-syncs=9", "node-monitor-grace-period=20s",
		"terminated-pod-gc-threshold=0", "horizontal-pod-autoscaler-tolerance=0", "cluster-signing-duration=48h",
		"node-eviction-rate=0", "secondary-node-eviction-rate=0.5", "unhealthy-zone-threshold=0.7", "large-cluster-size-threshold=0", "node-startup-grace-period=2m",
		"node-monitor-period=3s", "max-endpoints-per-slice=7", "mirroring-max-endpoints-per-subset=8", "endpoint-updates-batch-period=1s",
		"endpointslice-updates-batch-period=2s", "mirroring-endpointslice-updates-batch-period=3s", "resource-quota-sync-period=1m",
		"legacy-service-account-token-clean-up-period=24h", "disable-force-detach-on-timeout=true", "enable-dynamic-provisioning=false", "enable-hostpath-provisioner=true",
		"enable-garbage-collector=false", "kube-api-qps=99", "leader-elect-lease-duration=60s", "leader-elect-renew-deadline=40s",
		"pv-recycler-pod-template-filepath-hostpath=testdata/recycler.yaml", "pv-recycler-timeout-increment-hostpath=0", "pv-recycler-minimum-timeout-nfs=7"})
	if err != nil {
		t.Fatal(err)
	}
	var cfg controllermanager.Config
	c.Apply(&cfg, "bootstrap-signer-controller")
	if want := []string{"*", "-ttl-controller", "bootstrap-signer-controller"}; !slices.Equal(cfg.Controllers, want) {
		t.Errorf("controllers %v, want %v", cfg.Controllers, want)
	}
	a := cfg.HorizontalPodAutoscaler
	if cfg.ConcurrentSyncs["deployment-controller"] != 9 || cfg.ConcurrentSyncs["job-controller"] != 5 ||
		cfg.SigningDuration != 48*time.Hour || a.SyncPeriod != 15*time.Second {
		t.Errorf("%+v", cfg)
	}
	if want := (nodelifecycle.Config{MonitorGracePeriod: 20 * time.Second, StartupGracePeriod: 2 * time.Minute, MonitorPeriod: 3 * time.Second, EvictionRate: -1,
		SecondaryEvictionRate: 0.5, UnhealthyZoneThreshold: 0.7, LargeClusterSizeThreshold: -1}); cfg.NodeLifecycle != want {
		t.Errorf("%+v, want %+v", cfg.NodeLifecycle, want)
	}
	if (cfg.EndpointSlice != endpointslice.Config{MaxEndpointsPerSlice: 7, UpdatesBatchPeriod: 2 * time.Second}) ||
		(cfg.EndpointSliceMirroring != endpointslicemirroring.Config{MaxEndpointsPerSubset: 8, UpdatesBatchPeriod: 3 * time.Second}) ||
		cfg.EndpointUpdatesBatchPeriod != time.Second || cfg.ResourceQuotaSyncPeriod != time.Minute || cfg.LegacyTokenUnused != 24*time.Hour ||
		!cfg.DisableForceDetachOnTimeout || !cfg.PersistentVolume.NoDynamicProvisioning || cfg.PersistentVolume.HostPaths != "/tmp/hostpath_pv" || !cfg.NoGarbageCollector || cfg.QPS != 99 || cfg.Burst != 30 ||
		cfg.Election.Duration != time.Minute || cfg.Election.Renew != 40*time.Second || cfg.Election.Retry != 2*time.Second {
		t.Errorf("%+v", cfg)
	}
	if h, n := cfg.PersistentVolume.HostPath, cfg.PersistentVolume.NFS; h.Minimum != time.Minute || h.PerGiB >= 0 || h.Template.Namespace != "kube-system" || n.Minimum != 7*time.Second || n.Template != nil {
		t.Errorf("%+v, %+v", h, n)
	}
	if cfg.TerminatedPodThreshold >= 0 || a.Tolerance == 0 || a.Tolerance > 1e-9 {
		t.Errorf("zero is none, and not the default: %d ended pods, a tolerance of %v", cfg.TerminatedPodThreshold, a.Tolerance)
	}
}

// TestParseRefuses: what is wrong is named, and what is to be said otherwise.
func TestParseRefuses(t *testing.T) {
	for setting, want := range map[string]string{
		"v=2":                                                          `there is no "v"; there are `,
		"controllers":                                                  "is not of the form key=value",
		"feature-gates=A=true":                                         "use --kube-apiserver-arg feature-gates=",
		"service-cluster-ip-range=10.0.0.0/8":                          "use --service-cidr",
		"controllers=gardener":                                         `"gardener" is not in the list`,
		"concurrent-job-syncs=-1":                                      "--concurrent-job-syncs: must not be negative",
		"concurrent-job-syncs=many":                                    "invalid argument",
		"horizontal-pod-autoscaler-tolerance=-1":                       "tolerance",
		"cloud-provider=aws":                                           "use --cloud-provider",
		"cidr-allocator-type=CloudAllocator":                           "--cidr-allocator-type: built-in cloud providers are disabled. The ipam CloudAllocator is not available",
		"max-endpoints-per-slice=1001":                                 "max-endpoints-per-slice must not be more than 1000, but got 1001",
		"mirroring-max-endpoints-per-subset=0":                         "mirroring-max-endpoints-per-subset must not be less than 1, but got 0",
		"node-monitor-period=0":                                        "--node-monitor-period: must be greater than zero",
		"endpoint-updates-batch-period=-1s":                            "--endpoint-updates-batch-period: must not be negative",
		"kube-api-content-type=text/plain":                             "--kube-api-content-type: neither",
		"leader-elect-lease-duration=1s":                               "--leader-elect-lease-duration: must be greater than --leader-elect-renew-deadline",
		"pv-recycler-minimum-timeout-nfs=0":                            "--pv-recycler-minimum-timeout-nfs: must be greater than zero",
		"pv-recycler-increment-timeout-nfs=-1":                         "--pv-recycler-increment-timeout-nfs: must not be negative",
		"pv-recycler-pod-template-filepath-nfs=testdata/none.yaml":     "--pv-recycler-pod-template-filepath-nfs: testdata/none.yaml: does not contain any volume(s)",
		"pv-recycler-pod-template-filepath-nfs=testdata/nowhere.yaml":  "no such file",
		"pv-recycler-pod-template-filepath-nfs=testdata/misspelt.yaml": `unknown field "volume"`,
		"leader-elect=false":                                           "leader-elect is the cluster's",
	} {
		if _, err := Parse([]string{setting}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", setting, err, want)
		}
	}
}

// TestLeaderMigration: that of the default configuration hands over controllers that are not
// here, so that nothing is to be done; another might hand over one that is.
func TestLeaderMigration(t *testing.T) {
	for _, settings := range [][]string{{"enable-leader-migration=true"}, {"leader-migration-config=/etc/migration.yaml"}} {
		if _, err := Parse(settings); err != nil {
			t.Errorf("%v: %v", settings, err)
		}
	}
	const want = "--leader-migration-config: controllers are not handed over"
	if _, err := Parse([]string{"enable-leader-migration=true", "leader-migration-config=/etc/migration.yaml"}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestKeys: nothing is known that a server says otherwise.
func TestKeys(t *testing.T) {
	for _, k := range Keys() {
		if ofServer[k] != "" {
			t.Error(k)
		}
	}
}

// TestNoLimit: requests are not limited unless that is asked for.
func TestNoLimit(t *testing.T) {
	c, err := Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	var cfg controllermanager.Config
	if c.Apply(&cfg); cfg.QPS != 0 || cfg.Burst != 0 {
		t.Errorf("%v requests a second, %d at once", cfg.QPS, cfg.Burst)
	}
}

// TestConnection: how requests are sent is said to every client, also of a server.
func TestConnection(t *testing.T) {
	c, err := Parse([]string{"kube-api-content-type=application/json", "kube-api-qps=7", "kube-api-burst=9"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := controllermanager.Config{Kube: &rest.Config{QPS: -1}, ClientFor: func(string) *rest.Config { return &rest.Config{QPS: -1} }}
	c.Apply(&cfg)
	for name, kube := range map[string]*rest.Config{"the manager's": cfg.Kube, "a controller's": cfg.ClientFor("namespace-controller")} {
		if kube.ContentType != "application/json" || kube.AcceptContentTypes != "application/json" || kube.QPS != 7 || kube.Burst != 9 {
			t.Errorf("%s: %q %q %v %d", name, kube.ContentType, kube.AcceptContentTypes, kube.QPS, kube.Burst)
		}
	}
}
