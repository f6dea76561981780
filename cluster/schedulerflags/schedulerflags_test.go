package schedulerflags

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"k8s.io/client-go/rest"

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

// TestShow: what is served at /configz is upstream's whole configuration, as
// testdata/configz.json has it, which upstream's own code wrote of its defaults.
func TestShow(t *testing.T) {
	var s Flags
	s.Bind(pflag.NewFlagSet("", pflag.ContinueOnError))
	want, err := os.ReadFile("testdata/configz.json")
	if err != nil {
		t.Fatal(err)
	}
	shown := func(p Process) (plain map[string]any) {
		t.Helper()
		b, err := json.Marshal(s.Show(p))
		if err == nil {
			err = json.Unmarshal(b, &plain)
		}
		if err != nil {
			t.Fatal(err)
		}
		return plain
	}
	var upstreams map[string]any
	if err := json.Unmarshal(want, &upstreams); err != nil {
		t.Fatal(err)
	}
	if got := shown(Process{Profiling: true, Contention: true}); !reflect.DeepEqual(got, upstreams) {
		b, _ := json.MarshalIndent(got, "", "\t")
		t.Errorf("got %s\nwant %s", b, want)
	}
	if err := s.Configuration.read(file(t, "parallelism: 4\ndelayCacheUntilActive: true\nprofiles: [{schedulerName: a, percentageOfNodesToScore: 50}, {schedulerName: b}]\n"), false); err != nil {
		t.Fatal(err)
	}
	got := shown(Process{Kubeconfig: "/k"})
	profiles := got["profiles"].([]any)
	if got["parallelism"] != 4.0 || got["delayCacheUntilActive"] != true || got["clientConnection"].(map[string]any)["kubeconfig"] != "/k" || len(profiles) != 2 ||
		profiles[0].(map[string]any)["percentageOfNodesToScore"] != 50.0 || profiles[1].(map[string]any)["schedulerName"] != "b" {
		t.Errorf("%v", got)
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

// TestConnection: how requests are sent is said to the scheduler of a server too.
func TestConnection(t *testing.T) {
	s, err := Parse([]string{"kube-api-content-type=application/json"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := scheduler.Config{Kube: &rest.Config{QPS: -1}}
	if s.Apply(&cfg); cfg.Kube.ContentType != "application/json" || cfg.Kube.QPS != -1 || cfg.QPS != 0 {
		t.Errorf("%q, %v requests a second, %v", cfg.Kube.ContentType, cfg.Kube.QPS, cfg.QPS)
	}
}
