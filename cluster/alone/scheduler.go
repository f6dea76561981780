package alone

import (
	"context"

	"github.com/spf13/pflag"

	"knarr/controlplane/scheduler"
)

type schedulerProgram struct {
	client
	elect bool
}

func (s *schedulerProgram) flags(f *pflag.FlagSet) {
	s.client.flags(f)
	f.BoolVar(&s.elect, "leader-elect", true, "take turns with other schedulers of the cluster")
}

func (s *schedulerProgram) run(ctx context.Context) error {
	kube, err := s.config("kube-scheduler")
	if err != nil {
		return err
	}
	sched, err := scheduler.New(scheduler.Config{Kube: kube, LeaderElect: s.elect})
	if err != nil {
		return err
	}
	return sched.Run(ctx)
}
