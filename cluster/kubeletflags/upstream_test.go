package kubeletflags

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"knarr/node/kubelet"
	"knarr/node/kubelet/configuration"
)

var update = flag.Bool("update", false, "write testdata/flags.txt anew")

// fate is what becomes of one of upstream's flags that a node of a cluster is given.
func fate(name string) string {
	switch f := configuration.FlagNamed(name); {
	case ofCluster[name] != "":
		return "refused: use --" + ofCluster[name]
	case isOfCluster(name):
		return "refused: the cluster's"
	case idleFlag(name) != "", name == "rotate-certificates": // of an agent
		return "changes nothing"
	case slices.Contains(Keys(), name) && f == nil:
		return "acts"
	case f == nil:
		return "refused: not a setting"
	}
	var d configuration.Document
	d.Put(configuration.FlagNamed(name).Field, "said")
	if len(d.Idle(false)) > 0 {
		return "changes nothing"
	}
	return "acts"
}

// TestUpstreamsFlags: each flag of upstream's kubelet acts, is taken with a line of the log
// that says that it changes nothing, or is refused; testdata/flags.txt is all of them.
func TestUpstreamsFlags(t *testing.T) {
	const file = "testdata/flags.txt"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var f Flags
	alone := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Bind(alone)
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
		is := fate(name)
		out.WriteString(name + "\t" + is + "\n")
		taken, err := Parse([]string{name + "=1"}, "")
		switch refused := strings.HasPrefix(is, "refused"); {
		case refused && err == nil:
			t.Errorf("%s is taken", name)
		case idleFlag(name) != "" && (err != nil || !slices.ContainsFunc(taken.ignored, func(s string) bool { return strings.HasPrefix(s, "--"+name+" (") })):
			t.Errorf("%s: %v", name, err)
		}
		if configuration.LogFlags[name] == "" && idleFlag(name) != "" && alone.Lookup(name) == nil {
			t.Errorf("%s stops a kubelet that runs alone", name)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if out.String() != string(b) {
		t.Errorf("not as in %s; run with -update and read the difference", file)
	}
}

// TestShownAsItActs: what changes nothing is not in the settings that /configz shows, and is
// checked all the same.
func TestShownAsItActs(t *testing.T) {
	f, err := Parse([]string{"hairpin-mode=hairpin-veth", "contention-profiling=true", "max-open-files=7", "housekeeping_interval=5s", "v=4", "max-pods=20", "feature-gates=MemoryQoS=true"}, "")
	if err != nil {
		t.Fatal(err)
	}
	s := f.Settings
	if s.HairpinMode == "hairpin-veth" || !s.EnableContentionProfiling || s.MaxOpenFiles == 7 || s.MaxPods != 20 || !s.FeatureGates["MemoryQoS"] {
		t.Errorf("%+v", s)
	}
	for _, want := range []string{"--housekeeping_interval (groups are measured when somebody asks)", "--v (the level of the log is the process's)", "maxOpenFiles (the limit of the process counts)"} {
		if !slices.Contains(f.ignored, want) {
			t.Errorf("%q is not logged, but %q", want, f.ignored)
		}
	}
	for arg, want := range map[string]string{
		"max-open-files=-1": "maxOpenFiles (--max-open-files) -1 must not be a negative number", "runonce=true": "Runonce mode has been deprecated",
		"allowed-unsafe-sysctls=net.*,vm.swappiness": `the sysctls "vm.swappiness" are not known to be namespaced`,
		"allowed-unsafe-sysctls=net.*.x":             `sysctl "net.*.x" must have at most 253 characters and match regex`,
	} {
		if _, err := Parse([]string{arg}, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
	if _, err := Parse([]string{"allowed-unsafe-sysctls=kernel.msg*,net/ipv4/route.min_pmtu,kernel.sem"}, ""); err != nil {
		t.Error(err)
	}
}

// TestOfTheProcess: what is about the process acts in one that runs a kubelet alone, and of a
// kubelet of a cluster changes nothing, which is logged.
func TestOfTheProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file, []byte("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxOpenFiles: 7\n"+
		"logging: {format: json, verbosity: 5, flushFrequency: 3s}\nimageServiceEndpoint: unix:///images.sock\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &Flags{File: file}
	if err := f.Load(); err != nil {
		t.Fatal(err)
	}
	var c kubelet.Config
	if err := f.Apply(&c); err != nil {
		t.Fatal(err)
	}
	format, verbosity := f.Logging()
	if c.Settings.MaxOpenFiles != 7 || !*c.Settings.EnableDebugFlagsHandler || c.ImageEndpoint != "unix:///images.sock" || format != "json" || verbosity == nil || *verbosity != 5 {
		t.Errorf("alone: %d files, level by request: %v, images at %q, log %q, level %v", c.Settings.MaxOpenFiles, *c.Settings.EnableDebugFlagsHandler, c.ImageEndpoint, format, verbosity)
	}
	if want := []string{"logging.flushFrequency (the log is written at once)"}; !slices.Equal(f.ignored, want) {
		t.Errorf("alone: ignored are %q", f.ignored)
	}
	f, err := Parse(nil, file)
	if err != nil {
		t.Fatal(err)
	}
	c = kubelet.Config{}
	if err := f.Apply(&c); err != nil {
		t.Fatal(err)
	}
	if format, verbosity := f.Logging(); c.Settings.MaxOpenFiles == 7 || *c.Settings.EnableDebugFlagsHandler || c.ImageEndpoint != "" || format != "" || verbosity != nil {
		t.Errorf("of a cluster: %+v", c.Settings)
	}
	if len(f.ignored) != 5 {
		t.Errorf("of a cluster: ignored are %q", f.ignored)
	}
}
