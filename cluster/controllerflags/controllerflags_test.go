package controllerflags

import (
	"slices"
	"strings"
	"testing"
	"time"

	"knarr/controlplane/controllermanager"
)

// TestParse: settings reach the controller manager, and the rest is as upstream's.
func TestParse(t *testing.T) {
	c, err := Parse([]string{"controllers=*,-ttl-controller", "--concurrent-deployment-syncs=9", "node-monitor-grace-period=20s",
		"terminated-pod-gc-threshold=0", "horizontal-pod-autoscaler-tolerance=0", "cluster-signing-duration=48h"})
	if err != nil {
		t.Fatal(err)
	}
	var cfg controllermanager.Config
	c.Apply(&cfg, "bootstrap-signer-controller")
	if want := []string{"*", "-ttl-controller", "bootstrap-signer-controller"}; !slices.Equal(cfg.Controllers, want) {
		t.Errorf("controllers %v, want %v", cfg.Controllers, want)
	}
	a := cfg.HorizontalPodAutoscaler
	if cfg.ConcurrentSyncs["deployment-controller"] != 9 || cfg.ConcurrentSyncs["job-controller"] != 0 || cfg.NodeMonitorGracePeriod != 20*time.Second ||
		cfg.SigningDuration != 48*time.Hour || a.SyncPeriod != 15*time.Second {
		t.Errorf("%+v", cfg)
	}
	if cfg.TerminatedPodThreshold >= 0 || a.Tolerance == 0 || a.Tolerance > 1e-9 {
		t.Errorf("zero is none, and not the default: %d ended pods, a tolerance of %v", cfg.TerminatedPodThreshold, a.Tolerance)
	}
}

// TestParseRefuses: what is wrong is named, and what is to be said otherwise.
func TestParseRefuses(t *testing.T) {
	for setting, want := range map[string]string{
		"v=2":                                    `there is no "v"; there are `,
		"controllers":                            "is not of the form key=value",
		"feature-gates=A=true":                   "use --kube-apiserver-arg feature-gates=",
		"service-cluster-ip-range=10.0.0.0/8":    "use --service-cidr",
		"controllers=gardener":                   `"gardener" is not in the list`,
		"concurrent-job-syncs=-1":                "--concurrent-job-syncs: must not be negative",
		"concurrent-job-syncs=many":              "invalid argument",
		"horizontal-pod-autoscaler-tolerance=-1": "tolerance",
	} {
		if _, err := Parse([]string{setting}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", setting, err, want)
		}
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
