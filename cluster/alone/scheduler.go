package alone

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/cluster/alone/secureserving"
	"knarr/cluster/componentflags"
	"knarr/cluster/schedulerflags"
	"knarr/controlplane/scheduler"
	"knarr/internal/healthz"
)

type schedulerProgram struct {
	client
	schedulerflags.Flags
	secure     secureserving.Options
	set        func(flag string) bool // whether the flag was given
	compatible componentflags.Compatibility
	gates      componentflags.Gates
	values     func() map[string]string
}

func (s *schedulerProgram) flags(f *pflag.FlagSet) {
	s.values = values(f)
	s.client.flags(f)
	s.set = f.Changed
	s.Bind(f)
	s.secure.Flags(f, 10259)
	s.compatible.Bind(f)
	s.gates.Bind(f, "", flagz, statusz)
}

func (s *schedulerProgram) run(ctx context.Context) error {
	if err := s.Load(); err != nil {
		return err
	}
	s.apply()
	if err := errors.Join(s.secure.Validate(), s.Validate(), s.compatible.Validate(), s.gates.Validate()); err != nil {
		return err
	}
	kube, err := s.config("kube-scheduler")
	if err != nil {
		return err
	}
	s.Connection.Apply(kube)
	healthy := s.Election.Watch()
	cfg := scheduler.Config{Kube: kube, LeaderElect: s.Election.On}
	s.Apply(&cfg)
	sched, err := scheduler.New(cfg)
	if err != nil {
		return err
	}
	return s.secure.With(ctx, secureserving.Component{Name: "kube-scheduler",
		Flags: s.values, NoFlagz: !s.gates.Enabled(flagz), NoStatusz: !s.gates.Enabled(statusz),
		Checks: func(path string) []healthz.Check {
			switch path {
			case "livez":
				return nil
			case "readyz":
				return append(elected(healthy), healthz.Of("shutdown", func() error {
					if ctx.Err() != nil {
						return errors.New("process is shutting down")
					}
					return nil
				}), healthz.Of("sched-handler-sync", sched.HandlersSynced))
			}
			return elected(healthy)
		},
		Metrics: map[string]prometheus.Gatherer{"resources": sched.PodResources()},
		Config: map[string]any{"componentconfig": s.Show(schedulerflags.Process{
			Kubeconfig: s.kubeconfig, Profiling: s.secure.Profiling, Contention: s.secure.Contention})}}, sched.Run)
}

// apply sets what the configuration file says of the process and no flag does.
func (s *schedulerProgram) apply() {
	c := &s.Configuration
	if c.ClientConnection.Kubeconfig != "" && !s.set("kubeconfig") {
		s.kubeconfig = c.ClientConnection.Kubeconfig
	}
	l, from := &s.Election, c.LeaderElection
	if from.LeaderElect != nil && !s.set("leader-elect") {
		l.On = *from.LeaderElect
	}
	for _, d := range []struct {
		flag string
		from metav1.Duration
		to   *time.Duration
	}{
		{"leader-elect-lease-duration", from.LeaseDuration, &l.Times.Duration},
		{"leader-elect-renew-deadline", from.RenewDeadline, &l.Times.Renew},
		{"leader-elect-retry-period", from.RetryPeriod, &l.Times.Retry},
	} {
		if d.from.Duration != 0 && !s.set(d.flag) {
			*d.to = d.from.Duration
		}
	}
	for _, t := range []struct {
		flag, from string
		to         *string
	}{
		{"leader-elect-resource-lock", from.ResourceLock, &l.Kind},
		{"leader-elect-resource-name", from.ResourceName, &l.Times.Name},
		{"leader-elect-resource-namespace", from.ResourceNamespace, &l.Times.Namespace},
	} {
		if t.from != "" && !s.set(t.flag) {
			*t.to = t.from
		}
	}
	if from := c.ClientConnection; from.QPS > 0 && !s.set("kube-api-qps") {
		s.Connection.QPS, s.Connection.Limited = from.QPS, true
	}
	if from := c.ClientConnection; from.Burst > 0 && !s.set("kube-api-burst") {
		s.Connection.Burst = int(from.Burst)
	}
	if from := c.ClientConnection; from.ContentType != "" && !s.set("kube-api-content-type") {
		s.Connection.ContentType = from.ContentType
	}
	if c.EnableProfiling != nil && !s.set("profiling") {
		s.secure.Profiling = *c.EnableProfiling
	}
}
