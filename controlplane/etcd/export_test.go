package etcd

import (
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// RaiseNoSpace raises the member's alarm, as a write does that does not fit.
func (m *Member) RaiseNoSpace(ctx context.Context) error {
	_, err := m.etcd.Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(m.etcd.MemberID()), Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	return err
}
