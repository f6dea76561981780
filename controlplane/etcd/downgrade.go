package etcd

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// downgradeTime bounds how long etcd may take: it looks every few seconds whether
// all members agree, and writes its data anew.
const downgradeTime = time.Minute

// Downgrade has the data written as etcd of version, one minor version below this
// one's such as 3.6, reads it, and returns once that is done. The member goes on;
// it must end before that etcd starts.
func (m *Member) Downgrade(ctx context.Context, version string) error {
	ctx, cancel := context.WithTimeout(ctx, downgradeTime)
	defer cancel()
	client := m.Acquire()
	defer m.Release()
	// A member that has just begun does not know its own version yet, and would
	// panic.
	if err := until(ctx, func() bool { return m.etcd.ClusterVersion() != nil }); err != nil {
		return fmt.Errorf("downgrade to etcd %s: %w", version, err)
	}
	if m.storedAs(version) {
		return nil
	}
	if _, err := client.Downgrade(ctx, clientv3.DowngradeEnable, version); err != nil {
		return fmt.Errorf("downgrade to etcd %s: %w", version, err)
	}
	if err := until(ctx, func() bool { return m.storedAs(version) }); err != nil {
		return fmt.Errorf("downgrade to etcd %s: the data is still that of %s: %w", version, m.etcd.StorageVersion(), err)
	}
	return nil
}

// until asks every 100 ms: nothing tells.
func until(ctx context.Context, ok func() bool) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// storedAs says that the data is as etcd of that minor version writes it.
func (m *Member) storedAs(version string) bool {
	now := m.etcd.StorageVersion()
	return now != nil && strings.HasPrefix(version+".", fmt.Sprintf("%d.%d.", now.Major, now.Minor))
}
