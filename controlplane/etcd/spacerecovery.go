package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The times between two recoveries. A member that is full of what is needed looks
// for room once a minute, or it would do nothing else. After one that made room the
// next may be soon: an alarm that this member had raised before arrives after it,
// if the leader was slow.
const minSpaceRecovery, maxSpaceRecovery = 250 * time.Millisecond, time.Minute

// errFull says that there is no room to be made.
var errFull = errors.New("what is stored needs it all; delete objects, which still works, and within a minute it looks again")

// Full says that a write was refused for want of room. It does not wait.
func (m *Member) Full() {
	select {
	case m.full <- struct{}{}:
	default:
	}
}

// runSpaceRecovery makes room whenever there is none, until ctx ends.
func (m *Member) runSpaceRecovery(ctx context.Context) {
	pause, last := minSpaceRecovery, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.full:
		}
		pause = min(2*pause, maxSpaceRecovery)
		if time.Since(last) > maxSpaceRecovery {
			pause = minSpaceRecovery
		}
		before, after, err := m.recoverSpaceSafely(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if errors.Is(err, errFull) {
				pause = maxSpaceRecovery
			}
			slog.ErrorContext(ctx, "the datastore is full and refuses writes", "bytes", after, "quota", m.cfg.quota(), "err", err)
		} else {
			slog.WarnContext(ctx, "the datastore was full and takes writes again: its history was forgotten", "bytes before", before, "bytes", after, "quota", m.cfg.quota())
		}
		last = time.Now()
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		select { // a refusal of before; while there is no room others follow
		case <-m.full:
		default:
		}
	}
}

// recoverSpaceSafely turns a panic into an error: the member goes on.
func (m *Member) recoverSpaceSafely(ctx context.Context) (before, after int64, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return m.recoverSpace(ctx)
}

// recoverSpace forgets the history, gives back what it took of the file, and lets
// writes in again if that was a tenth of the quota at least.
func (m *Member) recoverSpace(ctx context.Context) (before, after int64, err error) {
	client := m.Acquire()
	defer m.Release()
	now, err := client.Status(ctx, "")
	if err != nil {
		return 0, 0, fmt.Errorf("ask etcd for its status: %w", err)
	}
	before, after = now.DbSize, now.DbSize
	if _, err := client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical()); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return before, after, fmt.Errorf("compact etcd: %w", err)
	}
	if err := m.etcd.Backend().Defrag(); err != nil {
		return before, after, fmt.Errorf("defragment etcd: %w", err)
	}
	if now, err = client.Status(ctx, ""); err != nil {
		return before, after, fmt.Errorf("ask etcd for its status: %w", err)
	}
	if after = now.DbSize; after > m.cfg.quota()/10*9 {
		return before, after, errFull
	}
	alarm := clientv3.AlarmMember{MemberID: uint64(m.etcd.MemberID()), Alarm: etcdserverpb.AlarmType_NOSPACE}
	if _, err := client.AlarmDisarm(ctx, &alarm); err != nil {
		return before, after, fmt.Errorf("disarm etcd's alarm: %w", err)
	}
	return before, after, nil
}
