package registry

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	_ "k8s.io/component-base/logs/json/register" // flags of its own, as in the programs
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

const root = "../../../"

// lines are those of a list of knarr's without comments.
func lines(t *testing.T, file string) (all []string) {
	t.Helper()
	b, err := os.ReadFile(root + file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if line[0] != '#' {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

func compare(t *testing.T, have, want []string) {
	t.Helper()
	slices.Sort(have)
	slices.Sort(want)
	for _, line := range want {
		if !slices.Contains(have, line) {
			t.Errorf("not in the list: %s", line)
		}
	}
	for _, line := range have {
		if !slices.Contains(want, line) {
			t.Errorf("not upstream's: %s", line)
		}
	}
}

// TestGates: names, defaults, stages and locks are upstream's of this version.
func TestGates(t *testing.T) {
	now := version.MajorMinor(1, 36)
	var want []string
	for name, specs := range utilfeature.DefaultMutableFeatureGate.GetAllVersioned() {
		line := ""
		for _, s := range specs { // oldest first
			if s.Version.GreaterThan(now) || name == "AllAlpha" || name == "AllBeta" {
				continue
			}
			stage := string(s.PreRelease)
			line = fmt.Sprintf("%s %v %s", name, s.Default, map[string]string{"ALPHA": "Alpha", "BETA": "Beta", "": "GA", "DEPRECATED": "Deprecated"}[stage])
			if s.LockToDefault {
				line += " locked"
			}
		}
		if line != "" {
			want = append(want, line)
		}
	}
	compare(t, lines(t, "internal/features/gates.txt"), want)
}

// TestFlags: names, types and defaults of flags are those of upstream's programs.
func TestFlags(t *testing.T) {
	for name, c := range map[string]*cobra.Command{"kube-controller-manager": controllers.NewControllerManagerCommand(), "kube-scheduler": scheduler.NewSchedulerCommand()} {
		var want []string
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" {
				want = append(want, strings.TrimSpace(strings.ReplaceAll(f.Name, "_", "-")+" "+f.Value.Type()+" "+f.DefValue))
			}
		})
		t.Run(name, func(t *testing.T) { compare(t, lines(t, "cluster/alone/testdata/flags-"+name+".txt"), want) })
	}
}
