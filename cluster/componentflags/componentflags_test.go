package componentflags

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestSet(t *testing.T) {
	var n int
	bind := func(f *pflag.FlagSet) {
		f.IntVar(&n, "workers", 0, "")
		f.String("address", "", "")
	}
	elsewhere := map[string]string{"address": "is the cluster's; use --node-ip", "port": "is not here"}
	for _, tt := range []struct{ setting, want string }{
		{"workers=3", ""},
		{"--workers=4", ""},
		{"workers", `"workers" is not of the form key=value`},
		{"address=x", "address is the cluster's; use --node-ip"},
		{"port=1", "port is not here"},
		{"wrokers=3", `there is no "wrokers"; there are workers`},
		{"workers=many", `invalid argument "many"`},
	} {
		if err := Set(bind, []string{tt.setting}, elsewhere); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.setting, err, tt.want)
		}
	}
	if err := Set(bind, []string{"workers=3", "--workers=4"}, elsewhere); err != nil || n != 4 {
		t.Errorf("workers are %d, %v", n, err)
	}
	if k := Keys(bind, elsewhere); !slices.Equal(k, []string{"workers"}) {
		t.Errorf("keys are %v", k)
	}
}

func TestReadConfig(t *testing.T) {
	type config struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
		Mode       string `json:"mode"`
	}
	for _, tt := range []struct{ text, want string }{
		{"kind: Thing\napiVersion: g/v1\nmode: a\n", ""},
		{"kind: Thing\napiVersion: g/v2\n", `no kind "Thing" of version "g/v1", but "Thing" of "g/v2"`},
		{"kind: Thing\napiVersion: g/v1\nmood: a\n", `unknown field "mood"`},
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var c config
		if err := ReadConfig(file, "Thing", "g/v1", &c, &c.Kind, &c.APIVersion); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.text, err, tt.want)
		}
	}
}
