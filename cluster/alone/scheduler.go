package alone

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/cluster/alone/secureserving"
	"knarr/cluster/schedulerflags"
	"knarr/controlplane/scheduler"
)

type schedulerProgram struct {
	client
	schedulerflags.Flags
	secure secureserving.Options
	lease  election
	set    func(flag string) bool // whether the flag was given
}

func (s *schedulerProgram) flags(f *pflag.FlagSet) {
	s.client.flags(f)
	s.set = f.Changed
	s.Bind(f)
	s.secure.Flags(f, 10259)
	s.lease.flags(f, "kube-scheduler")
}

func (s *schedulerProgram) run(ctx context.Context) error {
	if err := s.Load(); err != nil {
		return err
	}
	s.apply()
	if err := errors.Join(s.secure.Validate(), s.lease.validate()); err != nil {
		return err
	}
	kube, err := s.config("kube-scheduler")
	if err != nil {
		return err
	}
	healthy := s.lease.watch()
	cfg := scheduler.Config{Kube: kube, LeaderElect: s.lease.on, Election: s.lease.times}
	s.Apply(&cfg)
	sched, err := scheduler.New(cfg)
	if err != nil {
		return err
	}
	return s.secure.With(ctx, secureserving.Component{Name: "kube-scheduler", Healthy: healthy,
		Metrics: map[string]prometheus.Gatherer{"resources": sched.PodResources()}, Config: map[string]any{
			"kubescheduler.config.k8s.io": map[string]any{"leaderElection": s.lease.configuration()}}}, sched.Run)
}

// apply sets what the configuration file says of the process and no flag does.
func (s *schedulerProgram) apply() {
	c := &s.Configuration
	if c.ClientConnection.Kubeconfig != "" && !s.set("kubeconfig") {
		s.kubeconfig = c.ClientConnection.Kubeconfig
	}
	l, from := &s.lease, c.LeaderElection
	if from.LeaderElect != nil && !s.set("leader-elect") {
		l.on = *from.LeaderElect
	}
	for _, d := range []struct {
		flag string
		from metav1.Duration
		to   *time.Duration
	}{
		{"leader-elect-lease-duration", from.LeaseDuration, &l.times.Duration},
		{"leader-elect-renew-deadline", from.RenewDeadline, &l.times.Renew},
		{"leader-elect-retry-period", from.RetryPeriod, &l.times.Retry},
	} {
		if d.from.Duration != 0 && !s.set(d.flag) {
			*d.to = d.from.Duration
		}
	}
	for _, t := range []struct {
		flag, from string
		to         *string
	}{
		{"leader-elect-resource-lock", from.ResourceLock, &l.kind},
		{"leader-elect-resource-name", from.ResourceName, &l.times.Name},
		{"leader-elect-resource-namespace", from.ResourceNamespace, &l.times.Namespace},
	} {
		if t.from != "" && !s.set(t.flag) {
			*t.to = t.from
		}
	}
	if c.EnableProfiling != nil && !s.set("profiling") {
		s.secure.Profiling = *c.EnableProfiling
	}
}
