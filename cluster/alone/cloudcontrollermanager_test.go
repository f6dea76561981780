package alone

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
