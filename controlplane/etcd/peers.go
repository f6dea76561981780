package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"knarr/internal/run"
)

// A Peer is a member as the others know it. One that has not started yet has no
// name, and one that is catching up has no vote.
type Peer struct {
	Name, URL string
	Learner   bool

	id uint64
}

// changeTime bounds questions about members and changes of them: etcd forgets
// one that meets another, or that a leader was asked which is lost.
const changeTime = 5 * time.Second

const (
	// lostTime is after what time a change of members is taken for a lost one: it takes
	// some milliseconds.
	lostTime = 2 * time.Second
	// changeTries is how often one is asked for.
	changeTries = 5
)

// untilTaken asks for a change of members that may be asked for twice. A leader forgets one
// that is proposed before it has applied all that an earlier leader wrote, as right after a
// start, and tells nobody: without a bound who asked would wait for ever.
func untilTaken(ctx context.Context, each time.Duration, change func(context.Context) error) (err error) {
	for range changeTries {
		one, cancel := context.WithTimeout(ctx, each)
		err = change(one)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// Peers are the members, by the word of most of them.
func (m *Member) Peers(ctx context.Context) ([]Peer, error) {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	resp, err := m.Client().MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the members of etcd: %w", err)
	}
	return peers(resp.Members), nil
}

func peers(members []*etcdserverpb.Member) (all []Peer) {
	for _, m := range members {
		p := Peer{Name: m.Name, Learner: m.IsLearner, id: m.ID}
		if len(m.PeerURLs) > 0 {
			p.URL = m.PeerURLs[0]
		}
		all = append(all, p)
	}
	return all
}

// ErrTaken says that a started member has the name or the URL.
var ErrTaken = errors.New("a member has that name or address")

// Add lets a member join, without a vote, and says what it must know: all
// members, itself by its name. One that was let in and never started may ask
// again.
func (m *Member) Add(ctx context.Context, name, url string) ([]Peer, error) {
	now, err := m.Peers(ctx)
	if err != nil {
		return nil, err
	}
	for i, p := range now {
		switch {
		case p.Name == "" && p.URL == url:
			now[i].Name = name
			return now, nil
		case p.Name == name || p.URL == url:
			return nil, fmt.Errorf("add %s at %s to etcd: %w", name, url, ErrTaken)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	resp, err := m.Client().MemberAddAsLearner(ctx, []string{url})
	if err != nil {
		return nil, fmt.Errorf("add %s to etcd: %w", name, err)
	}
	now = peers(resp.Members)
	for i, p := range now {
		if p.id == resp.Member.ID {
			now[i].Name = name
		}
		if now[i].Name == "" { // another that has not started: any name but a member's
			now[i].Name = p.URL
		}
	}
	return now, nil
}

// promoteEvery is how often a member that catches up asks for its vote; etcd
// does not announce when it may.
const promoteEvery = 100 * time.Millisecond

// Promote waits until this member has caught up, and has a vote. It does nothing
// for one that has.
func (m *Member) Promote(ctx context.Context) error {
	for len(m.cfg.Join) > 0 || m.etcd.IsLearner() { // who joins does not know yet
		one, cancel := context.WithTimeout(ctx, time.Second)
		_, err := m.Client().MemberPromote(one, uint64(m.etcd.MemberID()))
		cancel()
		if err == nil || errors.Is(err, rpctypes.ErrMemberNotLearner) {
			return nil
		}
		select {
		case <-time.After(promoteEvery):
		case <-ctx.Done():
			return fmt.Errorf("get a vote in etcd: %w", err)
		}
	}
	return nil
}

// UpdatePeerURL stores the address of this member in etcd if it has changed.
func (m *Member) UpdatePeerURL(ctx context.Context) error {
	m.mu.RLock()
	n, me := m.cfg.Network, m.etcd.MemberID()
	m.mu.RUnlock()
	if n == nil {
		return nil
	}
	all, err := m.Peers(ctx)
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.id == uint64(me) && p.URL != n.URL.String() {
			if err := untilTaken(ctx, lostTime, func(ctx context.Context) error {
				_, err := m.Client().MemberUpdate(ctx, p.id, []string{n.URL.String()})
				return err
			}); err != nil {
				return fmt.Errorf("tell etcd's members the new address: %w", err)
			}
		}
	}
	return nil
}

// Leads reports whether this member leads the others, or is alone.
func (m *Member) Leads() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.etcd.Leader() == m.etcd.MemberID()
}

// Yield lets another member lead, if this one does.
func (m *Member) Yield() error {
	if !m.Leads() {
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.etcd.TryTransferLeadershipOnShutdown()
}

// answerTime is how long a member may take to be called alive.
const answerTime = time.Second

// Remove takes the member of a name out of the cluster, if there is one. It
// refuses when too few would be left that answer.
func (m *Member) Remove(ctx context.Context, name string) error {
	all, err := m.Peers(ctx)
	if err != nil {
		return err
	}
	var gone *Peer
	var rest []Peer
	unnamed := false
	for i, p := range all {
		if p.Name == name {
			gone = &all[i]
		} else if !p.Learner {
			rest = append(rest, p)
			unnamed = unnamed || p.Name == ""
		}
	}
	if gone == nil && unnamed {
		return fmt.Errorf("remove %s from etcd: a member that has just joined has not told its name yet", name)
	}
	if gone == nil {
		return nil
	}
	if alive := m.alive(ctx, rest); !gone.Learner && alive < len(rest)/2+1 {
		return fmt.Errorf("remove %s from etcd: of the %d servers left only %d answer, which is no majority; start one first", name, len(rest), alive)
	}
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	if _, err := m.Client().MemberRemove(ctx, gone.id); err != nil && !errors.Is(err, rpctypes.ErrMemberNotFound) {
		return fmt.Errorf("remove %s from etcd: %w", name, err)
	}
	return nil
}

// alive counts the members that take connections.
func (m *Member) alive(ctx context.Context, all []Peer) int {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	m.mu.RLock()
	me := uint64(m.etcd.MemberID())
	m.mu.RUnlock()
	var count atomic.Int32
	var group run.Group
	for _, p := range all {
		group.Go("etcd: ask a peer", func() {
			u, err := url.Parse(p.URL)
			if err != nil {
				return
			}
			if p.id != me {
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
				if err != nil {
					return
				}
				conn.Close()
			}
			count.Add(1)
		})
	}
	group.Wait()
	return int(count.Load())
}
