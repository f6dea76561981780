package schedulerflags

import (
	_ "embed"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
)

// defaultProfile is what upstream's default profile has: the plugins by extension point, and
// the settings of each. The test beside it says where it is from.
//
//go:embed profile.json
var defaultProfile []byte

// A Process is what a configuration says of the process and the flags of its port decide.
type Process struct {
	Kubeconfig            string
	Profiling, Contention bool
}

// Show is the whole configuration that the file and the flags say, with upstream's defaults
// for the rest, as upstream's program serves it at /configz.
func (s *Flags) Show(p Process) map[string]any {
	c := &s.Configuration
	shown := map[string]any{
		"kind": "KubeSchedulerConfiguration", "apiVersion": "kubescheduler.config.k8s.io/v1",
		"parallelism": deref(c.Parallelism, 16), "percentageOfNodesToScore": deref(c.PercentageOfNodesToScore, 0),
		"podInitialBackoffSeconds": deref(c.PodInitialBackoffSeconds, 1), "podMaxBackoffSeconds": deref(c.PodMaxBackoffSeconds, 10),
		"enableProfiling": p.Profiling, "enableContentionProfiling": p.Contention,
		"leaderElection": s.Election.Configuration(),
		"clientConnection": map[string]any{"kubeconfig": p.Kubeconfig, "acceptContentTypes": c.ClientConnection.AcceptContentTypes,
			"contentType": s.Connection.ContentType, "qps": s.Connection.QPS, "burst": s.Connection.Burst},
	}
	if c.DelayCacheUntilActive {
		shown["delayCacheUntilActive"] = true
	}
	profiles := c.Profiles
	if len(profiles) == 0 {
		profiles = []schedulerProfile{{}}
	}
	var all []map[string]any
	for _, profile := range profiles {
		one := map[string]any{}
		_ = json.Unmarshal(defaultProfile, &one) // a test reads it
		one["schedulerName"] = profile.SchedulerName
		if profile.SchedulerName == "" {
			one["schedulerName"] = corev1.DefaultSchedulerName
		}
		if percent := profile.PercentageOfNodesToScore; percent != nil {
			one["percentageOfNodesToScore"] = *percent
		}
		all = append(all, one)
	}
	shown["profiles"] = all
	return shown
}

func deref[T any](p *T, none T) T {
	if p == nil {
		return none
	}
	return *p
}
