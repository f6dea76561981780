package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The Lease, as upstream's.
const (
	leaseName     = "kube-scheduler"
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// lead contends for the Lease and runs a term whenever it is won. A lost Lease
// ends the term, not the process.
func (s *Scheduler) lead(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.cfg.Kube)
	if err != nil {
		return fmt.Errorf("leader election's client: %w", err)
	}
	identity := s.cfg.Identity
	if identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("leader election: %w", err)
		}
		identity = host + "_" + string(uuid.NewUUID())
	}
	for ctx.Err() == nil {
		if err := s.contend(ctx, client, identity); err != nil {
			return err
		}
	}
	return nil
}

// contend waits for the Lease and runs one term. It gives the Lease back only
// once the term has ended.
func (s *Scheduler) contend(ctx context.Context, client kubernetes.Interface, identity string) error {
	won := make(chan context.Context)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: leaseName,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: leaseName},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
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
	contending, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(contending)
	}()
	defer func() { giveUp(); <-ended }()
	select {
	case <-ctx.Done():
		return nil
	case <-ended:
		return nil
	case leading := <-won:
		slog.InfoContext(ctx, "leading", "lease", leaseName, "identity", identity)
		both, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(leading, stop)()
		err := s.term(both)
		if ctx.Err() == nil && leading.Err() != nil {
			slog.WarnContext(ctx, "lost the lease", "lease", leaseName, "identity", identity)
		}
		return err
	}
}
