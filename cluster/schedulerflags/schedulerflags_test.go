package schedulerflags

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"knarr/controlplane/scheduler"
)

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestParse: the profiles of a file are the names that the scheduler goes by, and what
// it says of the process does no harm.
func TestParse(t *testing.T) {
	for text, want := range map[string][]string{
		"":                 nil,
		"profiles: [{}]\n": nil,
		"leaderElection: {leaderElect: true}\nclientConnection: {kubeconfig: /a}\n": nil,
		"profiles: [{schedulerName: default-scheduler}, {schedulerName: mine}]\n":   {"default-scheduler", "mine"},
	} {
		s, err := Parse([]string{"config=" + file(t, text)})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var cfg scheduler.Config
		if s.Apply(&cfg); !slices.Equal(cfg.Names, want) {
			t.Errorf("%s: names %v, want %v", text, cfg.Names, want)
		}
	}
	if s, err := Parse(nil); err != nil || s.Configuration.names() != nil {
		t.Errorf("without a file: %v", err)
	}
}

// TestParseRefuses: what is wrong is named.
func TestParseRefuses(t *testing.T) {
	for setting, want := range map[string]string{
		"v=2":                          `there is no "v"; there are config`,
		"leader-elect-retry-period=1m": "--leader-elect-renew-deadline: must be more than 1.2 times",
		"leader-elect=false":           "leader-elect is the cluster's",
		"write-config-to=/x":           "--write-config-to: the configuration is not written",
		"config":                       "is not of the form key=value",
		"secure-port=0":                "secure-port is of a port of its own",
		"config=/nonexistent":          "no such file",
		"config=" + file(t, "extenders: [{urlPrefix: x}]\n"): "extenders: there are none here",
	} {
		if _, err := Parse([]string{setting}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", setting, err, want)
		}
	}
}

// TestWithoutEffect: a server names more settings that change nothing.
func TestWithoutEffect(t *testing.T) {
	var c Configuration
	c.ClientConnection.Kubeconfig, c.LeaderElection.ResourceName, c.ClientConnection.QPS = "/a", "mine", 5
	if got := c.withoutEffect(false); len(got) > 0 {
		t.Errorf("alone: %v", got)
	}
	if got := c.withoutEffect(true); !slices.Equal(got, []string{"clientConnection.kubeconfig", "clientConnection.qps", "leaderElection"}) {
		t.Errorf("in a server: %v", got)
	}
}
