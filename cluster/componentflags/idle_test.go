package componentflags

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
)

// logged is what f writes into the log.
func logged(t *testing.T, f func()) string {
	t.Helper()
	var out bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	defer slog.SetDefault(before)
	f()
	return out.String()
}

// TestIdle: flags without effect are named once, if they are given another value than the
// default; those that ask for what is not there are refused.
func TestIdle(t *testing.T) {
	all := []Idle{
		{Name: "period", Default: time.Minute, Why: "changes are watched"},
		{Name: "dir", Default: "/a", Why: "there is none"},
		{Name: "migrate", Default: false, Why: "nothing is handed over", Only: true},
	}
	for args, want := range map[string]struct{ log, err string }{
		"":                            {"", ""},
		"--period=60s --dir=/a":       {"", ""},
		"--migrate=false":             {"", ""},
		"--period=2m --dir=/b":        {`flags="--dir: there is none; --period: changes are watched"`, ""},
		"--migrate":                   {"", "--migrate: nothing is handed over"},
		"--migrate=true --period=30s": {"--period: changes are watched", "--migrate: nothing is handed over"},
	} {
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		BindIdle(f, all)
		if err := f.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		var err error
		log := logged(t, func() { err = CheckIdle(f, all) })
		if !strings.Contains(log, want.log) || (want.log == "") != (log == "") || strings.Count(log, "\n") > 1 {
			t.Errorf("%s: the log has %q, want %q", args, log, want.log)
		}
		if (err == nil) != (want.err == "") || err != nil && err.Error() != want.err {
			t.Errorf("%s: %v, want %q", args, err, want.err)
		}
	}
}

// TestGates: what acts is on, what is known and does not is named, the rest is refused.
func TestGates(t *testing.T) {
	for asked, want := range map[string]struct{ log, err string }{
		"HPAScaleToZero=true":          {"", ""},
		"ContainerRestartRules=true":   {"", ""},
		"ContainerRestartRules=false":  {"gates=\"ContainerRestartRules=false\"", ""},
		"Gardening=true":               {"", "--feature-gates: unrecognized feature gate: Gardening"},
		"SidecarContainers=false":      {"", "--feature-gates: cannot set feature gate SidecarContainers to false, feature is locked to true"},
		"AllAlpha=true,MemoryQoS=true": {"MemoryQoS=true", ""},
	} {
		var g Gates
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		g.Bind(f, "", "HPAScaleToZero", "AllAlpha")
		if err := f.Parse([]string{"--feature-gates=" + asked}); err != nil {
			t.Fatal(err)
		}
		var err error
		log := logged(t, func() { err = g.Validate() })
		if !strings.Contains(log, want.log) || (want.log == "") != (log == "") {
			t.Errorf("%s: the log has %q", asked, log)
		}
		if (err == nil) != (want.err == "") || err != nil && err.Error() != want.err {
			t.Errorf("%s: %v, want %q", asked, err, want.err)
		}
		if on := g.On()["HPAScaleToZero"]; err == nil && on != (strings.HasPrefix(asked, "HPAScale") || strings.HasPrefix(asked, "AllAlpha")) {
			t.Errorf("%s: HPAScaleToZero is %v", asked, on)
		}
	}
}

// TestCompatibility: this program is like one version.
func TestCompatibility(t *testing.T) {
	for args, want := range map[string]string{
		"--emulated-version=1.36":          "",
		"--emulated-version=kube=1.36":     "",
		"--emulated-version=v1.36.0":       "",
		"--emulated-version=1.35":          "--emulated-version: 1.35: this program is like 1.36 and no other; leave it out",
		"--emulated-version=new":           `--emulated-version: "new" is not a version such as 1.36`,
		"--emulated-version=etcd=3.6":      "--emulated-version: component not registered: etcd",
		"--min-compatibility-version=1.35": "",
	} {
		var c Compatibility
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.Bind(f)
		if err := f.Parse([]string{args}); err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestConnection: no limit counts unless it is given, and JSON is spoken where it is.
func TestConnection(t *testing.T) {
	for args, want := range map[string]struct {
		qps   float32
		burst int
		kind  string
	}{
		"":                                  {-1, 0, protobuf},
		"--kube-api-qps=7":                  {7, 30, protobuf},
		"--kube-api-burst=9":                {20, 9, protobuf},
		"--kube-api-qps=-1":                 {-1, 0, protobuf},
		"--kube-api-content-type=" + asJSON: {-1, 0, asJSON},
	} {
		var c Connection
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.Bind(f, 20, 30)
		if err := f.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		cfg := &rest.Config{QPS: -1, ContentConfig: rest.ContentConfig{ContentType: protobuf}}
		if c.Apply(cfg); cfg.QPS != want.qps || cfg.Burst != want.burst || cfg.ContentType != want.kind {
			t.Errorf("%s: %v, %d, %s", args, cfg.QPS, cfg.Burst, cfg.ContentType)
		}
	}
}
