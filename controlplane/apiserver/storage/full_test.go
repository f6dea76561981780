package storage_test

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/etcd"
)

const quota = 4 << 20

// full is a store whose member has no room for one more value.
func full(t *testing.T, ctx context.Context, key func(i int) string) (s *storage.Etcd, value []byte) {
	t.Helper()
	m, err := etcd.Start(ctx, etcd.Config{Dir: t.TempDir(), UnsafeNoFsync: true, QuotaBytes: quota})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- m.Run(running) }()
	t.Cleanup(func() { stop(); <-done })
	s = storage.NewEmbedded(m)
	return s, fill(t, ctx, s, key)
}

// fill writes until the store is full, and returns what it wrote last.
func fill(t *testing.T, ctx context.Context, s *storage.Etcd, key func(i int) string) (value []byte) {
	t.Helper()
	value = bytes.Repeat([]byte("x"), quota/16)
	revisions := map[string]int64{}
	for i := 0; ctx.Err() == nil; i++ { // the size etcd looks at is of its last commit, up to 100 ms ago
		rev, _, ok, err := s.Put(ctx, key(i), value, revisions[key(i)], 0)
		if err != nil {
			if got := err.Error(); got != "etcdserver: mvcc: database space exceeded" {
				t.Fatalf("write %d: %s", i, got)
			}
			return value
		}
		if !ok {
			t.Fatalf("write %d: conflict", i)
		}
		revisions[key(i)] = rev
	}
	t.Fatal("the quota is never reached")
	return nil
}

// A store full of history makes room by itself.
func TestRoomIsMade(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, value := full(t, ctx, func(int) string { return "/one" })
	for {
		kv, _, err := s.Get(ctx, "/one")
		if err != nil || kv == nil {
			t.Fatal(kv, err)
		}
		if _, _, ok, err := s.Put(ctx, "/one", value, kv.Revision, 0); err == nil && ok {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("no room is made")
		}
	}
	size, err := s.Size(ctx)
	if err != nil || size > quota/2 {
		t.Errorf("%d bytes, %v", size, err)
	}
}

// A store full of what is needed still forgets what is deleted, and loses nothing.
func TestFullStoreDeletes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, value := full(t, ctx, func(i int) string { return fmt.Sprintf("/%05d", i) })
	before, _, _, err := s.List(ctx, "/", "", 0, 0)
	if err != nil || len(before) < 8 {
		t.Fatal(len(before), err)
	}
	if _, _, ok, err := s.Delete(ctx, before[0].Key, before[0].Revision); err != nil || !ok {
		t.Fatalf("delete: %v, %v", ok, err)
	}
	after, _, _, err := s.List(ctx, "/", "", 0, 0)
	if err != nil || len(after) != len(before)-1 || !bytes.Equal(after[0].Value, value) {
		t.Errorf("%d values of %d, %v", len(after), len(before), err)
	}
}

// An etcd elsewhere is not ours to make room in. Once its keeper has, it is
// written to again, by the same client.
func TestRoomIsMadeElsewhere(t *testing.T) {
	small := func(t *testing.T) string {
		at := url.URL{Scheme: "http", Host: port(t)}
		m, err := etcd.Start(t.Context(), etcd.Config{Dir: t.TempDir(), UnsafeNoFsync: true, QuotaBytes: quota, Clients: []url.URL{at}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return at.String()
	}
	upstream := func(t *testing.T) string {
		at, peer := "http://"+port(t), "http://"+port(t)
		cmd := exec.Command(upstreamEtcd(t), "--data-dir", t.TempDir(), "--listen-client-urls", at, "--advertise-client-urls", at,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer,
			"--quota-backend-bytes", strconv.Itoa(quota), "--unsafe-no-fsync", "--log-level", "panic")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return at
	}
	for name, start := range map[string]func(*testing.T) string{"ours": small, "upstream": upstream} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			client, err := storage.Dial(ctx, storage.Remote{Endpoints: []string{start(t)}})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			s := storage.NewEtcd(client)
			value := fill(t, ctx, s, func(int) string { return "/one" })
			kv, _, err := s.Get(ctx, "/one")
			if err != nil {
				t.Fatal(err)
			}
			if _, _, _, err := s.Put(ctx, "/one", value, kv.Revision, 0); err == nil {
				t.Fatal("a write to a full store goes through")
			}
			status, err := client.Status(ctx, client.Endpoints()[0])
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.Compact(ctx, status.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Defragment(ctx, client.Endpoints()[0]); err != nil {
				t.Fatal(err)
			}
			if _, err := client.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
				t.Fatal(err)
			}
			if _, _, ok, err := s.Put(ctx, "/one", value, kv.Revision, 0); err != nil || !ok {
				t.Errorf("after room was made: %t, %v", ok, err)
			}
		})
	}
}
