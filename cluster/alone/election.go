package alone

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/leaderelection"

	"knarr/internal/leader"
)

// election is the flags of leader election.
type election struct {
	on    bool
	kind  string
	times leader.Times
}

// healthTimeout is how long after the end of its Lease a leader still counts as
// healthy, as upstream's.
const healthTimeout = 20 * time.Second

// watch gives what /healthz says of the election.
func (e *election) watch() func() error {
	if !e.on {
		return nil
	}
	e.times.Watchdog = leaderelection.NewLeaderHealthzAdaptor(healthTimeout)
	return func() error { return e.times.Watchdog.Check(nil) }
}

func (e *election) flags(f *pflag.FlagSet, lease string) {
	f.BoolVar(&e.on, "leader-elect", true, "take turns with others of the cluster")
	f.DurationVar(&e.times.Duration, "leader-elect-lease-duration", 15*time.Second, "`time` after which others may lead when the leader is silent")
	f.DurationVar(&e.times.Renew, "leader-elect-renew-deadline", 10*time.Second, "`time` after which a leader that cannot renew its lease gives up")
	f.DurationVar(&e.times.Retry, "leader-elect-retry-period", 2*time.Second, "`time` between two tries")
	f.StringVar(&e.kind, "leader-elect-resource-lock", "leases", "`resource` of the lock: leases")
	f.StringVar(&e.times.Name, "leader-elect-resource-name", lease, "`name` of the Lease")
	f.StringVar(&e.times.Namespace, "leader-elect-resource-namespace", "kube-system", "`namespace` of the Lease")
}

func (e *election) validate() error {
	if !e.on {
		return nil
	}
	var errs []error
	if e.kind != "leases" {
		errs = append(errs, errors.New("--leader-elect-resource-lock: only leases is supported"))
	}
	if e.times.Retry <= 0 || e.times.Renew <= e.times.Retry*6/5 {
		errs = append(errs, errors.New("--leader-elect-renew-deadline: must be more than 1.2 times --leader-elect-retry-period, which must be greater than zero"))
	}
	if e.times.Duration <= e.times.Renew {
		errs = append(errs, errors.New("--leader-elect-lease-duration: must be greater than --leader-elect-renew-deadline"))
	}
	return errors.Join(errs...)
}

func (e *election) configuration() map[string]any {
	return map[string]any{"leaderElect": e.on, "leaseDuration": e.times.Duration.String(), "renewDeadline": e.times.Renew.String(),
		"retryPeriod": e.times.Retry.String(), "resourceLock": e.kind, "resourceName": e.times.Name, "resourceNamespace": e.times.Namespace}
}
