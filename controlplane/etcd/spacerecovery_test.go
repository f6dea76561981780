package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"knarr/controlplane/etcd"
)

// Of several members that are full of history each gives back its own file, and
// then all take writes: no alarm of anybody's is left.
func TestRoomOfSeveral(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const quota = 4 << 20
	creds := credentials(t)
	first, err := etcd.Start(ctx, etcd.Config{Dir: t.TempDir(), UnsafeNoFsync: true, QuotaBytes: quota})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Grow(ctx, "one", at(t, creds)); err != nil {
		t.Fatal(err)
	}
	members := []*etcd.Member{first}
	for _, name := range []string{"two", "three"} {
		n := at(t, creds)
		all, err := first.Add(ctx, name, n.URL.String())
		if err != nil {
			t.Fatal(err)
		}
		m, err := etcd.Start(ctx, etcd.Config{Dir: t.TempDir(), UnsafeNoFsync: true, QuotaBytes: quota, Name: name, Network: n, Join: all})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Promote(ctx); err != nil {
			t.Fatal(err)
		}
		members = append(members, m)
	}
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, m := range members {
		wg.Go(func() { _ = m.Run(running) })
	}
	defer wg.Wait()
	defer stop()

	// put writes as an API server does: who is refused tells its own member.
	value := string(bytes.Repeat([]byte("x"), quota/16))
	put := func(m *etcd.Member, value string) error {
		_, err := m.Client().Put(ctx, "/one", value)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			m.Full()
		}
		return err
	}
	refused := false
	for i := 0; !refused; i++ {
		err := put(members[i%3], value)
		if refused = errors.Is(err, rpctypes.ErrNoSpace); err != nil && !refused {
			t.Fatal(err)
		}
	}
	// Every server writes now and then, its own lease if nothing else.
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for served := 0; served < len(members); {
		select {
		case <-pause.C:
		case <-ctx.Done():
			t.Fatal("no room is made")
		}
		served = 0
		for i, m := range members {
			switch err := put(m, "small"); {
			case err == nil:
				served++
			case !errors.Is(err, rpctypes.ErrNoSpace):
				t.Fatalf("member %d: %v", i, err)
			}
		}
	}
	for i, m := range members {
		alarms, err := m.Client().AlarmList(ctx)
		if err != nil || len(alarms.Alarms) > 0 {
			t.Errorf("member %d has alarms %v, %v", i, alarms, err)
		}
		resp, err := m.Client().Get(ctx, "/one")
		if err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "small" {
			t.Errorf("member %d lost the value: %v", i, err)
		}
		status, err := m.Client().Status(ctx, "")
		if err != nil || status.DbSize > quota/10*9 {
			t.Errorf("member %d: %d bytes, %v", i, status.DbSize, err)
		}
	}
}

// A member's alarm may arrive after it has made room, since the leader was slow:
// it makes room again at once, not in a minute.
func TestRoomAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	m, err := etcd.Start(ctx, etcd.Config{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = m.Run(running) })
	defer wg.Wait()
	defer stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range 3 {
		if err := m.RaiseNoSpace(ctx); err != nil {
			t.Fatal(err)
		}
		for {
			_, err := m.Client().Put(ctx, "/one", "small")
			if err == nil {
				break
			}
			if !errors.Is(err, rpctypes.ErrNoSpace) {
				t.Fatal(err)
			}
			m.Full()
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatal("no room is made again")
			}
		}
	}
}
