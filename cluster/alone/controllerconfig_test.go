package alone

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"knarr/controlplane/controllermanager"
)

const controllerKind = "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1\nkind: KubeControllerManagerConfiguration\n"

// managed is a controller manager of a file and flags, as run reads them.
func managed(t *testing.T, text string, args ...string) (*controllerManager, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &controllerManager{}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	m.flags(f)
	if err := f.Parse(append(args, "--config="+file)); err != nil {
		t.Fatal(err)
	}
	if err := m.Load(); err != nil {
		return nil, err
	}
	return m, m.Validate()
}

// TestControllerConfiguration: the file's settings count, and flags before them.
func TestControllerConfiguration(t *testing.T) {
	m, err := managed(t, controllerKind+`
Generic:
  Port: 10300
  Controllers: ["*", -ttl-controller]
  LeaderElection: {leaderElect: false, leaseDuration: 30s, renewDeadline: 0s, resourceName: ""}
  ClientConnection: {kubeconfig: /a/kubeconfig, qps: 100, burst: 200, acceptContentTypes: ""}
  Debugging: {enableProfiling: false, enableContentionProfiling: null}
KubeCloudShared: {AllocateNodeCIDRs: true, ClusterCIDR: 10.1.0.0/16, CloudProvider: {Name: external}}
NodeLifecycleController: {NodeEvictionRate: 0.5, NodeMonitorGracePeriod: 70s, PodEvictionTimeout: 5m0s}
JobController: {ConcurrentJobSyncs: 9}
DeprecatedController: {}
`, "--node-monitor-grace-period=80s")
	if err != nil {
		t.Fatal(err)
	}
	var cfg controllermanager.Config
	m.Apply(&cfg)
	if m.Election.On || m.Election.Times.Duration != 30*time.Second || m.Election.Times.Renew != 10*time.Second || m.Election.Times.Name != "kube-controller-manager" ||
		m.kubeconfig != "/a/kubeconfig" || m.secure.Profiling || m.secure.Port != 10300 || !m.nodeCIDRs || m.clusterCIDR != "10.1.0.0/16" {
		t.Errorf("%+v", m)
	}
	if cfg.QPS != 100 || cfg.Burst != 200 || cfg.NodeLifecycle.EvictionRate != 0.5 || cfg.NodeLifecycle.MonitorGracePeriod != 80*time.Second ||
		cfg.ConcurrentSyncs["job-controller"] != 9 || len(cfg.Controllers) != 2 {
		t.Errorf("%+v", cfg)
	}
}

// TestControllerConfigurationRefused: errors name the field.
func TestControllerConfigurationRefused(t *testing.T) {
	for text, want := range map[string]string{
		"kind: Other\n":                   `no kind "KubeControllerManagerConfiguration"`,
		controllerKind + "Generics: {}\n": `unknown field "Generics"`,
		controllerKind + "JobController: {concurrentJobSyncs: 1}\n":            `unknown field "JobController.concurrentJobSyncs"`,
		controllerKind + "JobController: {ConcurrentJobSyncs: many}\n":         "JobController.ConcurrentJobSyncs: ",
		controllerKind + "JobController: 1\n":                                  "JobController: is not an object",
		controllerKind + "Generic: {Port: true}\n":                             "Generic.Port: true is not of the type int",
		controllerKind + "Generic: {Port: 1, Port: 2}\n":                       `already set`,
		controllerKind + "NodeLifecycleController: {PodEvictionTimeout: 1m}\n": "NodeLifecycleController.PodEvictionTimeout: is always 5m0s here; remove it",
		controllerKind + "KubeCloudShared: {CloudProvider: {Name: aws}}\n":     `cloud provider "aws" was specified, but built-in cloud providers are disabled`,
	} {
		if _, err := managed(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestControllerConfigz: what is shown can be given as a file, and is the same then. Its
// fields are all of upstream's, and no others.
func TestControllerConfigz(t *testing.T) {
	m, err := managed(t, controllerKind, "--node-eviction-rate=0.5", "--controllers=*,-ttl-controller")
	if err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal(m.Configuration())
	if err != nil {
		t.Fatal(err)
	}
	again, err := managed(t, string(shown))
	if err != nil {
		t.Fatal(err)
	}
	second, err := json.Marshal(again.Configuration())
	if err != nil || string(second) != string(shown) {
		t.Errorf("%s\nwas %s, %v", second, shown, err)
	}
	for _, want := range []string{`"NodeEvictionRate":0.5`, `"MinResyncPeriod":"12h0m0s"`, `"Controllers":["*","-ttl-controller"]`, `"leaderElect":true`,
		`"EnableGarbageCollector":true`, `"NodeCIDRMaskSize":0`, `"Name":""`, `"GCIgnoredResources":[{"Group":"","Resource":"events"}`} {
		if !strings.Contains(string(shown), want) {
			t.Errorf("no %s in %s", want, shown)
		}
	}
}
