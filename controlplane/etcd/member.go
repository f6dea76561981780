package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"knarr/internal/run"
)

// A Member is a running member.
type Member struct {
	mu     sync.RWMutex // for writing while the member starts anew
	cfg    Config
	etcd   *serving
	client *clientv3.Client
	grown  chan struct{}
	full   chan struct{} // a write was refused for want of room

	leader       types.ID // the leader that was logged last
	leaderLogged bool
	term         atomic.Pointer[term]
}

// A term is the time of one leader among several.
type term struct {
	ctx context.Context
	end context.CancelFunc
}

// ErrRemoved says that the other members have removed this one for good.
var ErrRemoved = errors.New("the cluster has removed this member")

var errStopped = errors.New("etcd stopped by itself")

// use makes e the member. The lock is held, or nobody has it yet.
func (m *Member) use(e *serving) { m.etcd, m.client = e, v3client.New(e.EtcdServer) }

// Client speaks to the member inside this process, until it grows.
func (m *Member) Client() *clientv3.Client {
	defer m.Release()
	return m.Acquire()
}

// Acquire is Client, good until Release: the member does not start anew between.
func (m *Member) Acquire() *clientv3.Client {
	m.mu.RLock()
	return m.client
}

// Newest is the revision of the last write, for sure so while the member is alone:
// what it has acknowledged it has applied, and nobody else acknowledges.
func (m *Member) Newest() (revision int64, alone bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.cfg.Network != nil {
		return 0, false
	}
	return m.etcd.KV().Rev(), true
}

// Release ends what Acquire began.
func (m *Member) Release() { m.mu.RUnlock() }

// Term ends with the time of the leader of now: what was under way with it may
// be lost. Nil while the member is alone.
func (m *Member) Term() context.Context {
	if t := m.term.Load(); t != nil {
		return t.ctx
	}
	return nil
}

// newTerm ends that of the leader before.
func (m *Member) newTerm() {
	ctx, end := context.WithCancel(context.Background())
	if before := m.term.Swap(&term{ctx, end}); before != nil {
		before.end()
	}
}

// Grown is closed once the member can have others beside it.
func (m *Member) Grown() <-chan struct{} { return m.grown }

// Grow starts the member anew so that others can join it: requests wait, watches
// end. It does nothing when that is so already.
func (m *Member) Grow(ctx context.Context, name string, n *Network) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cfg.Network != nil {
		return nil
	}
	before := m.cfg
	m.end()
	m.cfg.Name, m.cfg.Network = name, n
	e, err := open(ctx, m.cfg)
	if err == nil {
		m.use(e)
		err = untilTaken(ctx, lostTime, func(ctx context.Context) error {
			_, err := m.client.MemberUpdate(ctx, uint64(e.MemberID()), []string{n.URL.String()})
			return err
		})
		if err == nil {
			close(m.grown)
			return nil
		}
		m.end()
	}
	m.cfg = before
	e, again := open(context.WithoutCancel(ctx), m.cfg)
	if again == nil {
		m.use(e)
	}
	return errors.Join(fmt.Errorf("open etcd to others at %s: %w", n.URL.Host, err), again)
}

// Run says who leads, makes room when there is none, and blocks until ctx ends,
// then stops the member; an error when the member stopped by itself.
func (m *Member) Run(ctx context.Context) error {
	defer m.Close()
	var room run.Group
	defer room.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	room.Loop(ctx, "etcd: keep room", m.runSpaceRecovery)
	for {
		m.mu.RLock()
		now, several := m.etcd, m.cfg.Network != nil
		m.mu.RUnlock()
		changed := now.LeaderChangedNotify()
		if several {
			m.logLeader(ctx, now)
		}
		err := errStopped
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			continue
		case err = <-now.failed:
		case <-now.StopNotify():
		}
		m.mu.RLock()
		same := m.etcd == now
		m.mu.RUnlock()
		switch {
		case ctx.Err() != nil:
			return nil
		case same && removed(now):
			return ErrRemoved
		case same:
			return fmt.Errorf("etcd: %w", err)
		}
	}
}

// logLeader logs a change of the leader.
func (m *Member) logLeader(ctx context.Context, e *serving) {
	leader := e.Leader()
	if leader == m.leader && m.leaderLogged {
		return
	}
	m.newTerm()
	m.leader, m.leaderLogged = leader, true
	if leader == e.MemberID() {
		slog.InfoContext(ctx, "this server leads etcd")
		return
	}
	slog.InfoContext(ctx, "another server leads etcd")
}

// Close stops the member.
func (m *Member) Close() {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.end()
}

// end stops what runs. Its watches would not end by themselves.
func (m *Member) end() {
	_ = m.client.Close()
	m.etcd.Close()
}

func removed(e *serving) bool {
	c, ok := e.Cluster().(interface{ IsIDRemoved(types.ID) bool })
	return ok && c.IsIDRemoved(e.MemberID())
}
