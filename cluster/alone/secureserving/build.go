package secureserving

import (
	"runtime"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"

	"knarr/internal/version"
)

// registerBuild tells which version of Kubernetes the process is like, once.
var registerBuild = sync.OnceFunc(func() {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version.Kubernetes, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	legacyregistry.RawMustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "[BETA] Always 1; its labels say which version of which program this is, and what it was built with.",
		ConstLabels: prometheus.Labels{
			"major": major, "minor": minor, "git_version": version.Kubernetes + "+knarr", "git_commit": version.Commit,
			"git_tree_state": "clean", "build_date": "", "go_version": runtime.Version(),
			"compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
		},
	}, func() float64 { return 1 }))
})
