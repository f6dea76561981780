package csi

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// limitPeriod is how often it is read whether a driver's limit may change.
	limitPeriod = time.Minute
	// limitTime bounds asking a driver for its limit.
	limitTime = 30 * time.Second
)

// updatePeriod is how often a driver wants to be asked how many volumes the node
// can have; 0 is never.
func updatePeriod(about *storagev1.CSIDriver) time.Duration {
	if s := about.Spec.NodeAllocatableUpdatePeriodSeconds; s != nil && *s > 0 {
		return time.Duration(*s) * time.Second
	}
	return 0
}

// followLimits keeps the limits of drivers in the CSINode true until ctx ends.
func (m *Manager) followLimits(ctx context.Context) {
	due := map[string]time.Time{}
	timer := time.NewTimer(limitPeriod)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(m.updateLimits(ctx, due, time.Now()))
	}
}

// updateLimits asks the drivers that are due, and says when the next one is.
func (m *Manager) updateLimits(ctx context.Context, due map[string]time.Time, now time.Time) time.Duration {
	next := limitPeriod
	for _, name := range m.names() {
		about, err := m.about(ctx, name)
		if err != nil {
			continue // asked again in a minute
		}
		period := updatePeriod(about)
		at, known := due[name]
		switch {
		case period == 0:
			delete(due, name)
			continue
		case !known || at.After(now.Add(period)):
			at = now.Add(period)
		case !at.After(now):
			if err := m.updateLimit(ctx, name); err != nil && ctx.Err() == nil {
				slog.Warn("ask a storage driver how many volumes the node can have", "driver", name, "err", err)
			}
			at = now.Add(period)
		}
		due[name] = at
		next = min(next, at.Sub(now))
	}
	return max(next, time.Second)
}

func (m *Manager) names() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.drivers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// updateLimit writes into the CSINode how many volumes the node can have now.
func (m *Manager) updateLimit(ctx context.Context, name string) error {
	d, err := m.driver(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limitTime)
	defer cancel()
	info, err := d.node.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return fmt.Errorf("NodeGetInfo of %s: %w", name, err)
	}
	have, err := m.Client.StorageV1().CSINodes().Get(ctx, m.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want := have.DeepCopy()
	for i := range want.Spec.Drivers {
		if o := &want.Spec.Drivers[i]; o.Name == name {
			o.Allocatable = entryOf(name, info).Allocatable
		}
	}
	if equality.Semantic.DeepEqual(have.Spec, want.Spec) {
		return nil
	}
	_, err = m.Client.StorageV1().CSINodes().Update(ctx, want, metav1.UpdateOptions{})
	return err
}

// full says whether a volume is not attached because the node can have no more, as
// its driver says; the limit in the CSINode is then made true at once, for the
// scheduler. Drivers whose limit does not change are believed from the start.
func (m *Manager) full(ctx context.Context, r record) bool {
	ctx, cancel := context.WithTimeout(ctx, limitTime)
	defer cancel()
	about, err := m.about(ctx, r.Driver)
	if err != nil || updatePeriod(about) == 0 {
		return false
	}
	a, err := m.Client.StorageV1().VolumeAttachments().Get(ctx, r.Attachment, metav1.GetOptions{})
	if err != nil || !exhausted(a) {
		return false
	}
	if err := m.updateLimit(ctx, r.Driver); err != nil {
		slog.Warn("ask a storage driver how many volumes the node can have", "driver", r.Driver, "err", err)
	}
	return true
}

func exhausted(a *storagev1.VolumeAttachment) bool {
	e := a.Status.AttachError
	return e != nil && e.ErrorCode != nil && codes.Code(*e.ErrorCode) == codes.ResourceExhausted
}
