// Package buildinfo is the metric kubernetes_build_info: which version of Kubernetes a
// program is like, and what it was built with. It reads and writes nothing.
package buildinfo

import (
	"cmp"
	"runtime"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/metrics/legacyregistry"

	"knarr/internal/version"
)

// Of is what is said of this program as one that is like a version of Kubernetes, such as
// v1.36.3 or v1.36.3+knarr. Pure.
func Of(gitVersion string) *apiversion.Info {
	major, rest, _ := strings.Cut(strings.TrimPrefix(gitVersion, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return &apiversion.Info{Major: major, Minor: minor, GitVersion: gitVersion, GitCommit: version.Commit, GitTreeState: "clean",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH}
}

// Metric is the metric of a program; what it does not say of how it was built is as this
// process was.
func Metric(v *apiversion.Info) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "[BETA] Always 1; its labels say which version of which program this is, and what it was built with.",
		ConstLabels: prometheus.Labels{
			"major": v.Major, "minor": v.Minor, "git_version": v.GitVersion, "git_commit": v.GitCommit,
			"git_tree_state": v.GitTreeState, "build_date": v.BuildDate, "go_version": cmp.Or(v.GoVersion, runtime.Version()),
			"compiler": cmp.Or(v.Compiler, runtime.Compiler), "platform": cmp.Or(v.Platform, runtime.GOOS+"/"+runtime.GOARCH),
		},
	}, func() float64 { return 1 })
}

// Register adds the metric to those of the process, once.
var Register = sync.OnceFunc(func() { legacyregistry.RawMustRegister(Metric(Of(version.Kubernetes + "+knarr"))) })
