package alone

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"knarr/controlplane/scheduler"
)

const schedulerKind = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// configured is a scheduler of a file and flags, as run reads them.
func configured(t *testing.T, text string, args ...string) (s *schedulerProgram, names []string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s = &schedulerProgram{}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.flags(f)
	if err := f.Parse(append(args, "--config="+file)); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(); err != nil {
		return nil, nil, err
	}
	s.apply()
	var cfg scheduler.Config
	s.Apply(&cfg)
	return s, cfg.Names, nil
}

// TestSchedulerConfiguration: the file's settings count, and flags before them.
func TestSchedulerConfiguration(t *testing.T) {
	s, names, err := configured(t, schedulerKind+`
leaderElection: {leaderElect: false, leaseDuration: 30s, renewDeadline: 20s, resourceName: mine}
clientConnection: {kubeconfig: /a/kubeconfig, qps: 100, burst: 200}
enableProfiling: false
profiles: [{schedulerName: one}, {schedulerName: two}]
`, "--leader-elect-lease-duration=40s")
	if err != nil {
		t.Fatal(err)
	}
	if s.Election.On || s.Election.Times.Duration != 40*time.Second || s.Election.Times.Renew != 20*time.Second || s.Election.Times.Retry != 2*time.Second ||
		s.Election.Times.Name != "mine" || s.Election.Times.Namespace != "kube-system" || s.kubeconfig != "/a/kubeconfig" || s.secure.Profiling {
		t.Errorf("%+v", s)
	}
	if !slices.Equal(names, []string{"one", "two"}) {
		t.Errorf("profiles %v", names)
	}
}

// TestSchedulerConfigurationRefused: what would have no effect is an error with the
// name of its field.
func TestSchedulerConfigurationRefused(t *testing.T) {
	for text, want := range map[string]string{
		"kind: Other\n":                                                        `no kind "KubeSchedulerConfiguration"`,
		schedulerKind + "unknown: 1\n":                                         `unknown field "unknown"`,
		schedulerKind + "extenders: [{urlPrefix: x}]\n":                        "extenders: there are none here",
		schedulerKind + "profiles: [{plugins: {score: {}}}]\n":                 "profiles[0].plugins: ",
		schedulerKind + "profiles: [{pluginConfig: [{name: x}]}]\n":            "profiles[0].pluginConfig: ",
		schedulerKind + "profiles: [{schedulerName: a}, {schedulerName: a}]\n": `profiles[1].schedulerName: "a" is another profile's`,
		schedulerKind + "podMaxBackoffSeconds: 60\n":                           "podMaxBackoffSeconds: is 10 here",
	} {
		if _, _, err := configured(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
