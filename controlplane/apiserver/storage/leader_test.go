package storage_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/etcd"
)

// faltering are clients of a store whose leader is lost during the first write:
// before it was done, or after, when only the answer is lost.
type faltering struct {
	*clientv3.Client
	done   bool // the first write is done
	tries  int
	leader context.Context
	lose   context.CancelFunc
}

func (f *faltering) Acquire() *clientv3.Client {
	c := clientv3.NewCtxClient(context.Background())
	c.KV = &falteringKV{f.Client.KV, f}
	return c
}
func (f *faltering) Release()              {}
func (f *faltering) Term() context.Context { return f.leader }

type falteringKV struct {
	clientv3.KV
	*faltering
}

func (k *falteringKV) Txn(ctx context.Context) clientv3.Txn {
	return &falteringTxn{k.KV.Txn(ctx), k.faltering, ctx}
}

type falteringTxn struct {
	clientv3.Txn
	*faltering
	ctx context.Context
}

func (x *falteringTxn) If(c ...clientv3.Cmp) clientv3.Txn  { x.Txn = x.Txn.If(c...); return x }
func (x *falteringTxn) Then(o ...clientv3.Op) clientv3.Txn { x.Txn = x.Txn.Then(o...); return x }
func (x *falteringTxn) Else(o ...clientv3.Op) clientv3.Txn { x.Txn = x.Txn.Else(o...); return x }
func (x *falteringTxn) Commit() (*clientv3.TxnResponse, error) {
	if x.tries++; x.tries > 1 {
		return x.Txn.Commit()
	}
	if x.done {
		if _, err := x.Txn.Commit(); err != nil {
			return nil, err
		}
	}
	lost := x.lose
	x.leader, x.lose = context.WithCancel(context.Background())
	lost() // ends what waits for an answer
	<-x.ctx.Done()
	return nil, x.ctx.Err()
}

// A write whose leader is lost is done once, whether or not it was done already.
func TestWriteOutlivesLeader(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	m, err := etcd.Start(ctx, etcd.Config{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, done := range []bool{false, true} {
		f := &faltering{Client: m.Client(), done: done}
		f.leader, f.lose = context.WithCancel(ctx)
		s := storage.NewEmbedded(f)
		key := map[bool]string{false: "/lost", true: "/done"}[done]
		rev, current, ok, err := s.Put(ctx, key, []byte("v"), 0, 0)
		if err != nil || !ok || current != nil || f.tries != 2 {
			t.Fatalf("done %v: %v, %v, %v after %d tries", done, current, ok, err, f.tries)
		}
		kv, _, err := s.Get(ctx, key)
		if err != nil || kv == nil || kv.Revision != rev || kv.Created != rev {
			t.Errorf("done %v: %+v at %d, %v", done, kv, rev, err)
		}
		// Another's value under the key is no success of ours.
		f.tries, f.done = 0, false
		if _, current, ok, err := s.Put(ctx, key, []byte("w"), 0, 0); err != nil || ok || current == nil || string(current.Value) != "v" {
			t.Errorf("done %v: over another's: %v, %v, %v", done, current, ok, err)
		}
		f.lose()
	}
}
