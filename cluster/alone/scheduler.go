package alone

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"knarr/cluster/alone/secureserving"
	"knarr/controlplane/scheduler"
)

type schedulerProgram struct {
	client
	secure secureserving.Options
	lease  election
	config string
	set    func(flag string) bool // whether the flag was given
}

func (s *schedulerProgram) flags(f *pflag.FlagSet) {
	s.client.flags(f)
	s.set = f.Changed
	f.StringVar(&s.config, "config", "", "`file` of a KubeSchedulerConfiguration")
	s.secure.Flags(f, 10259)
	s.lease.flags(f, "kube-scheduler")
}

func (s *schedulerProgram) run(ctx context.Context) error {
	var names []string
	if s.config != "" {
		var c schedulerConfiguration
		if err := c.read(s.config); err != nil {
			return err
		}
		c.apply(s, s.set)
		names = c.names()
	}
	if err := errors.Join(s.secure.Validate(), s.lease.validate()); err != nil {
		return err
	}
	kube, err := s.client.config("kube-scheduler")
	if err != nil {
		return err
	}
	healthy := s.lease.watch()
	sched, err := scheduler.New(scheduler.Config{Kube: kube, LeaderElect: s.lease.on, Election: s.lease.times, Names: names})
	if err != nil {
		return err
	}
	return s.secure.With(ctx, secureserving.Component{Name: "kube-scheduler", Healthy: healthy,
		Metrics: map[string]prometheus.Gatherer{"resources": sched.PodResources()}, Config: map[string]any{
			"kubescheduler.config.k8s.io": map[string]any{"leaderElection": s.lease.configuration()}}}, sched.Run)
}
