// Package leader lets the instances of a component take turns: one of them
// leads, by a Lease in kube-system that it reads and writes.
package leader

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"knarr/internal/run"
)

// Config names the Lease and who contends for it.
type Config struct {
	// Kube reaches the API server as the component.
	Kube *rest.Config
	// Lease is its name, upstream's for the component.
	Lease string
	// Identity names this contender. Default: host name and a random id.
	Identity string
	// Times say where the Lease is and how long it is held. Default: upstream's.
	Times Times
}

// Times are the settings of an election. A zero value means its default.
type Times struct {
	// Namespace and Name are the Lease's. Default kube-system and the component's.
	Namespace, Name string
	// Duration is how long a silent leader keeps the Lease, Renew when one that cannot
	// renew it gives up, Retry the time between two tries. Default 15, 10 and 2 s.
	Duration, Renew, Retry time.Duration
	// Watchdog, if set, learns of a leader that cannot renew its Lease.
	Watchdog *leaderelection.HealthzAdaptor
}

func (c *Config) setDefaults() {
	t := &c.Times
	t.Namespace, t.Name = cmp.Or(t.Namespace, metav1.NamespaceSystem), cmp.Or(t.Name, c.Lease)
	t.Duration, t.Renew, t.Retry = cmp.Or(t.Duration, 15*time.Second), cmp.Or(t.Renew, 10*time.Second), cmp.Or(t.Retry, 2*time.Second)
}

// Run contends for the Lease until ctx ends and runs term whenever it is won,
// with a context that ends with the Lease and that Fenced knows. A lost Lease ends
// the term, not the process; an error of term ends Run.
func Run(ctx context.Context, c Config, term func(context.Context) error) error {
	client, err := kubernetes.NewForConfig(c.Kube)
	if err != nil {
		return fmt.Errorf("leader election's client: %w", err)
	}
	c.setDefaults()
	if c.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("leader election: %w", err)
		}
		c.Identity = host + "_" + string(uuid.NewUUID())
	}
	for ctx.Err() == nil {
		if err := contend(ctx, client, c, term); err != nil {
			return err
		}
	}
	return nil
}

// contend waits for the Lease and runs one term. It gives the Lease back only
// once the term has ended.
func contend(ctx context.Context, client kubernetes.Interface, c Config, term func(context.Context) error) error {
	won := make(chan context.Context)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: c.Times.Name,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.Times.Namespace, Name: c.Times.Name},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity},
		},
		LeaseDuration: c.Times.Duration, RenewDeadline: c.Times.Renew, RetryPeriod: c.Times.Retry,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				select {
				case won <- leading:
				case <-leading.Done():
				}
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	if c.Times.Watchdog != nil {
		c.Times.Watchdog.SetLeaderElection(elector)
	}
	contending, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	run.Go("leader election", func() {
		defer close(ended)
		elector.Run(contending)
	})
	defer func() { giveUp(); <-ended }()
	select {
	case <-ctx.Done():
		return nil
	case <-ended:
		return nil
	case leading := <-won:
		slog.InfoContext(ctx, "leading", "lease", c.Lease, "identity", c.Identity)
		both, stop := context.WithCancel(under(ctx, elector, c.Times.Name))
		defer stop()
		defer context.AfterFunc(leading, stop)()
		err := term(both)
		if ctx.Err() == nil && leading.Err() != nil {
			slog.WarnContext(ctx, "lost the lease", "lease", c.Lease, "identity", c.Identity)
		}
		return err
	}
}
