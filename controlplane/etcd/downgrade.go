package etcd

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// downgradeTime bounds how long etcd may take: it looks every few seconds whether
// all members agree, and writes its data anew.
const downgradeTime = time.Minute

// Downgrade has the data written as etcd of version to, one minor version below this
// one's such as 3.6, reads it, and returns once that is done. The member goes on;
// it must end before that etcd starts.
func (m *Member) Downgrade(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeout(ctx, downgradeTime)
	defer cancel()
	client := m.Acquire()
	defer m.Release()
	to = version.Cluster(to)
	status, err := client.Status(ctx, "")
	if err != nil {
		return fmt.Errorf("downgrade to etcd %s: %w", to, err)
	}
	if info := status.DowngradeInfo; !info.GetEnabled() || version.Cluster(info.GetTargetVersion()) != to {
		// A member that has just begun does not know its own version yet, and would
		// panic; one that has just read an older etcd's data is still to raise it.
		if err := until(ctx, func() bool { return m.clusterVersion() == version.Cluster(version.Version) }); err != nil {
			return fmt.Errorf("downgrade to etcd %s: %w", to, err)
		}
		if _, err := client.Downgrade(ctx, clientv3.DowngradeEnable, to); err != nil {
			return fmt.Errorf("downgrade to etcd %s: %w", to, err)
		}
	}
	if err := until(ctx, func() bool { return m.clusterVersion() == to && m.storageVersion() == to }); err != nil {
		return fmt.Errorf("downgrade to etcd %s: the data is still that of %s: %w", to, m.storageVersion(), err)
	}
	return nil
}

// until asks every 100 ms: etcd announces nothing.
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

// clusterVersion is such as 3.7, and "" while it is not known.
func (m *Member) clusterVersion() string {
	if v := m.etcd.ClusterVersion(); v != nil {
		return version.Cluster(v.String())
	}
	return ""
}

// storageVersion is such as 3.7, and "" for data of an etcd that did not write it.
func (m *Member) storageVersion() string {
	if v := m.etcd.StorageVersion(); v != nil {
		return version.Cluster(v.String())
	}
	return ""
}
