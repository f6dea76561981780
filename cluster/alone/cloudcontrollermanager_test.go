package alone

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/fake"
)

// untagged is a provider that has no ID of the cluster.
type untagged struct{ *fake.Cloud }

func (untagged) HasClusterID() bool { return false }

// TestVendor: a provider that a build links and registers is found by its name, and
// gets its file.
func TestVendor(t *testing.T) {
	cloudprovider.RegisterCloudProvider("vendor.example", func(config io.Reader) (cloudprovider.Interface, error) {
		if config == nil {
			return &fake.Cloud{Provider: "none"}, nil
		}
		b, err := io.ReadAll(config)
		if err == nil && string(b) == "bad" {
			err = errors.New("no credentials")
		}
		return untagged{&fake.Cloud{Provider: string(b)}}, err
	})
	file := filepath.Join(t.TempDir(), "cloud.conf")
	for name, c := range map[string]struct {
		text     string
		untagged bool
		want     string
	}{
		"no file":                {"", false, "none"},
		"a file":                 {"[Global]", true, "[Global]"},
		"no ID of the cluster":   {"[Global]", false, "no ClusterID found"},
		"a file that is refused": {"bad", true, `could not init cloud provider "vendor.example": no credentials`},
	} {
		m := &cloudControllerManager{provider: "vendor.example", untagged: c.untagged}
		if c.text != "" {
			m.config = file
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cloud, err := m.open()
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = cloud.ProviderName()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	m := &cloudControllerManager{provider: "vendor.example", config: file + "x"}
	if _, err := m.open(); err == nil || !strings.Contains(err.Error(), "--cloud-config: open ") {
		t.Error(err)
	}
}

// TestCloudConfigz: all of upstream's configuration is shown, as flags say it.
func TestCloudConfigz(t *testing.T) {
	m := &cloudControllerManager{}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	m.flags(f)
	if err := f.Parse([]string{"--concurrent-service-syncs=7", "--cluster-name=c", "--feature-gates=" + watchBasedRoutes + "=true"}); err != nil {
		t.Fatal(err)
	}
	if err := m.gates.Validate(); err != nil || !m.gates.Enabled(watchBasedRoutes) {
		t.Errorf("the feature is off: %v", err)
	}
	for path, flag := range cloudConfiguration.Flags {
		if f.Lookup(flag) == nil {
			t.Errorf("%s: there is no flag %s", path, flag)
		}
	}
	b, err := json.Marshal(cloudConfiguration.Show(f))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/cloudconfigz.json")
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(want, &fields); err != nil {
		t.Fatal(err)
	}
	if got, want := pathsOf("", got), pathsOf("", fields); !slices.Equal(got, want) {
		t.Errorf("fields\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got["ServiceController"].(map[string]any)["ConcurrentServiceSyncs"] != 7.0 || got["KubeCloudShared"].(map[string]any)["ClusterName"] != "c" {
		t.Errorf("%s", b)
	}
}

// pathsOf are the fields of an object and of those in it, in order.
func pathsOf(prefix string, o map[string]any) (all []string) {
	for name, v := range o {
		all = append(all, prefix+name)
		if below, ok := v.(map[string]any); ok {
			all = append(all, pathsOf(prefix+name+".", below)...)
		}
	}
	slices.Sort(all)
	return all
}
