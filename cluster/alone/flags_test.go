package alone

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// otherDefaults are flags whose default is not upstream's, and why.
var otherDefaults = map[string]string{
	"cloud-controller-manager authentication-tolerate-lookup-failure": "it starts with the API server, not after it",
	"controller-manager authentication-tolerate-lookup-failure":       "it starts with the API server, not after it",
	"scheduler contention-profiling":                                  "what goroutines wait for costs time to record",
}

// TestFlagsAreUpstreams: every flag of upstream's program is here, with its default and
// for the same values.
func TestFlagsAreUpstreams(t *testing.T) {
	for _, c := range Components {
		b, err := os.ReadFile("testdata/flags-kube-" + c.Name + ".txt")
		if c.Name == "cloud-controller-manager" {
			b, err = os.ReadFile("testdata/flags-" + c.Name + ".txt")
		}
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.New(f)
		for line := range strings.Lines(string(b)) {
			if line[0] == '#' {
				continue
			}
			name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			kind, value, _ := strings.Cut(rest, " ")
			one := f.Lookup(name)
			switch {
			case one == nil:
				t.Errorf("%s: --%s is not here", c.Name, name)
			case otherDefaults[c.Name+" "+name] != "":
				if one.DefValue == value {
					t.Errorf("%s: --%s has upstream's default", c.Name, name)
				}
			case one.DefValue != value && !(value == "" && one.DefValue == "[]"):
				t.Errorf("%s: --%s is %q by default, upstream's %q", c.Name, name, one.DefValue, value)
			case strings.TrimSuffix(kind, "32") != strings.TrimSuffix(one.Value.Type(), "32") && !alike[kind+" "+one.Value.Type()]:
				t.Errorf("%s: --%s is a %s, upstream's a %s", c.Name, name, one.Value.Type(), kind)
			}
		}
	}
}

// alike are types that take the same values.
var alike = map[string]bool{
	"Level int": true,
	"colonSeparatedMultimapStringString stringSlice": true,
	"int32Slice intSlice":                            true,
	"int32Slice stringSlice":                         true,
	"ip string":                                      true,
	"mapStringBool stringSlice":                      true,
	"namedCertKey stringArray":                       true,
	"namedCertKey stringSlice":                       true,
	"pattern=N,... string":                           true,
	"quantity string":                                true,
	"version string":                                 true,
}

// TestUnderscores: as upstream's, flags may be written with them.
func TestUnderscores(t *testing.T) {
	for _, c := range Components {
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.New(f)
		if err := f.Parse([]string{"--logging_format=json"}); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
}
