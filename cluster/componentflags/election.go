package componentflags

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/leaderelection"

	"knarr/internal/leader"
)

// Election is the flags of leader election.
type Election struct {
	On    bool
	Kind  string
	Times leader.Times
}

// healthTimeout is how long after the end of its Lease a leader still counts as
// healthy, as upstream's.
const healthTimeout = 20 * time.Second

// Watch gives what /healthz says of the election.
func (e *Election) Watch() func() error {
	if !e.On {
		return nil
	}
	e.Times.Watchdog = leaderelection.NewLeaderHealthzAdaptor(healthTimeout)
	return func() error { return e.Times.Watchdog.Check(nil) }
}

// Bind declares the flags; lease is the default name of the Lease.
func (e *Election) Bind(f *pflag.FlagSet, lease string) {
	f.BoolVar(&e.On, "leader-elect", true, "take turns with others of the cluster")
	f.DurationVar(&e.Times.Duration, "leader-elect-lease-duration", 15*time.Second, "`time` after which others may lead when the leader is silent")
	f.DurationVar(&e.Times.Renew, "leader-elect-renew-deadline", 10*time.Second, "`time` after which a leader that cannot renew its lease gives up")
	f.DurationVar(&e.Times.Retry, "leader-elect-retry-period", 2*time.Second, "`time` between two tries")
	f.StringVar(&e.Kind, "leader-elect-resource-lock", "leases", "`resource` of the lock: leases")
	f.StringVar(&e.Times.Name, "leader-elect-resource-name", lease, "`name` of the Lease")
	f.StringVar(&e.Times.Namespace, "leader-elect-resource-namespace", "kube-system", "`namespace` of the Lease")
}

// Validate names what cannot be.
func (e *Election) Validate() error {
	if !e.On {
		return nil
	}
	var errs []error
	if e.Kind != "leases" {
		errs = append(errs, errors.New("--leader-elect-resource-lock: only leases is supported"))
	}
	if e.Times.Retry <= 0 || e.Times.Renew <= e.Times.Retry*6/5 {
		errs = append(errs, errors.New("--leader-elect-renew-deadline: must be more than 1.2 times --leader-elect-retry-period, which must be greater than zero"))
	}
	if e.Times.Duration <= e.Times.Renew {
		errs = append(errs, errors.New("--leader-elect-lease-duration: must be greater than --leader-elect-renew-deadline"))
	}
	return errors.Join(errs...)
}

// Configuration is what /configz shows of it.
func (e *Election) Configuration() map[string]any {
	return map[string]any{"leaderElect": e.On, "leaseDuration": e.Times.Duration.String(), "renewDeadline": e.Times.Renew.String(),
		"retryPeriod": e.Times.Retry.String(), "resourceLock": e.Kind, "resourceName": e.Times.Name, "resourceNamespace": e.Times.Namespace}
}
