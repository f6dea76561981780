package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"knarr/internal/run"
)

// Etcd keeps everything in etcd, embedded or elsewhere.
type Etcd struct {
	clients Clients
	terms   Terms       // nil for a store elsewhere
	commits groupCommit // of writes to a member that is alone
	leases  leases
}

// Clients give out the client for one request. The embedded member has another
// once it has grown.
type Clients interface {
	// Acquire waits for a client that serves until Release.
	Acquire() *clientv3.Client
	Release()
}

// one is a client for good.
type one struct{ *clientv3.Client }

func (o one) Acquire() *clientv3.Client { return o.Client }
func (o one) Release()                  {}

// NewEtcd returns the store behind client, which Close closes.
func NewEtcd(client *clientv3.Client) *Etcd { return NewEmbedded(one{client}) }

// NewEmbedded returns the store behind clients.
func NewEmbedded(clients Clients) *Etcd {
	terms, _ := clients.(Terms)
	return &Etcd{clients: clients, terms: terms, leases: leases{grant: func(ctx context.Context, ttl int64) (clientv3.LeaseID, error) {
		defer clients.Release()
		l, err := clients.Acquire().Grant(ctx, ttl)
		if err != nil {
			return 0, err
		}
		return l.ID, nil
	}}}
}

func fromEtcd(kv *mvccpb.KeyValue) KV {
	return KV{Key: string(kv.Key), Value: kv.Value, Revision: kv.ModRevision, Created: kv.CreateRevision}
}

// get reads, and reads again when the members had to choose another leader: a
// read asked nothing of the one before that could have been done.
func (e *Etcd) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	for {
		resp, err := e.clients.Acquire().KV.Get(ctx, key, opts...)
		e.clients.Release()
		if err == nil || !leaderless(err) {
			return resp, err
		}
		select {
		case <-time.After(leaderTime):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// leaderTime is how soon a read asks again for a leader.
const leaderTime = 50 * time.Millisecond

func leaderless(err error) bool {
	return errors.Is(err, rpctypes.ErrLeaderChanged) || errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail)
}

// Stopped says that an error is of a member of etcd that ends, as that of a server does
// that leaves its cluster.
func Stopped(err error) bool { return errors.Is(err, rpctypes.ErrStopped) }

func (e *Etcd) Get(ctx context.Context, key string) (*KV, int64, error) {
	resp, err := e.get(ctx, key)
	if err != nil {
		return nil, 0, failed("get", err)
	}
	if len(resp.Kvs) == 0 {
		return nil, resp.Header.Revision, nil
	}
	kv := fromEtcd(resp.Kvs[0])
	return &kv, resp.Header.Revision, nil
}

func (e *Etcd) List(ctx context.Context, prefix, after string, limit int, at int64) ([]KV, int64, bool, error) {
	from := prefix
	if after >= prefix && after != "" {
		from = after + "\x00"
	}
	end := clientv3.GetPrefixRangeEnd(prefix)
	if prefix == "" {
		end = "\x00"
		if from == "" {
			from = "\x00"
		}
	}
	resp, err := e.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(int64(limit)), clientv3.WithRev(at))
	if err != nil {
		return nil, 0, false, failed("list", err)
	}
	kvs := make([]KV, len(resp.Kvs))
	for i, kv := range resp.Kvs {
		kvs[i] = fromEtcd(kv)
	}
	rev := at
	if rev == 0 {
		rev = resp.Header.Revision
	}
	return kvs, rev, resp.More, nil
}

func (e *Etcd) Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, *KV, bool, error) {
	var opts []clientv3.OpOption
	if ttl > 0 {
		id, err := e.leases.get(ctx, ttl)
		if err != nil {
			e.full(err)
			return 0, nil, false, failed("lease", err)
		}
		opts = append(opts, clientv3.WithLease(id))
	}
	resp, again, err := e.swap(ctx, key, expect, clientv3.OpPut(key, shared(value), opts...))
	if err != nil {
		e.full(err)
		return 0, nil, false, failed("put", err)
	}
	if resp.Succeeded {
		return resp.Header.Revision, nil, true, nil
	}
	current := elsewhere(resp)
	if again && current != nil && current.Revision > expect && bytes.Equal(current.Value, value) {
		return current.Revision, nil, true, nil // the first try had been done
	}
	return 0, current, false, nil
}

// shared is value as a string, which nobody changes: OpPut makes its own copy.
func shared(value []byte) string { return unsafe.String(unsafe.SliceData(value), len(value)) }

// full notifies the embedded member if err is that its database is full.
func (e *Etcd) full(err error) {
	if m, ok := e.clients.(interface{ Full() }); ok && errors.Is(err, rpctypes.ErrNoSpace) {
		m.Full()
	}
}

// Terms are Clients whose store has a leader that may be lost.
type Terms interface {
	// Term ends with the leader of now; nil when there is none but this process.
	Term() context.Context
}

// swap does a compare-and-put once, though it tries again when the leader was lost:
// the first try may have been lost with it, and would only be answered after seconds.
//
//  1. The put is conditional: it takes effect only if the key's revision is expect.
//  2. While the store has a leader, a try is bound to its term: it is cancelled when
//     the term ends. A try that is answered before is the last.
//  3. Whether a cancelled try was done cannot be told. It may even be done later, by
//     the next leader, which found it in its log.
//  4. The same put is tried again, with the same expect, once the next leader may be
//     known. A put that takes effect changes the revision, so that the compare of
//     all later ones fails. (Only if expect is 0, and another client deletes what
//     the first try had created, does the second create it again.)
//  5. A try whose compare fails returns what is there now, and swap reports whether
//     there was a try before it.
//  6. If there was, and this very value is there with a newer revision than expect,
//     Put takes it for the earlier try's, and succeeds with that revision.
//  7. Anything else there is of another client, and a conflict. So is a first try
//     that was done and has been overwritten: the caller reads what is there and
//     decides anew, as after any conflict.
//  8. A store elsewhere, or a member that is alone, has no terms: there is one try.
func (e *Etcd) swap(ctx context.Context, key string, expect int64, put clientv3.Op) (resp *clientv3.TxnResponse, again bool, err error) {
	for ; ; again = true {
		var term context.Context
		if e.terms != nil {
			term = e.terms.Term()
		}
		if term == nil {
			resp, err = e.commit(ctx, key, expect, put)
			return resp, again, err
		}
		one, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(term, cancel)
		resp, err = e.try(one, key, expect, put)
		stop()
		cancel()
		if err == nil || ctx.Err() != nil || term.Err() == nil && !leaderless(err) {
			return resp, again, err
		}
		select { // the next leader may not be known yet
		case <-time.After(leaderTime):
		case <-ctx.Done():
			return nil, again, err
		}
	}
}

// commit is try, together with others where the store is in this process and alone:
// where there are more members or a network, many groups are under way at once.
func (e *Etcd) commit(ctx context.Context, key string, expect int64, do clientv3.Op) (*clientv3.TxnResponse, error) {
	if e.terms != nil && e.terms.Term() == nil {
		group, err := e.commits.enter(ctx)
		if err != nil {
			return nil, err
		}
		defer e.commits.leave(group)
	}
	return e.try(ctx, key, expect, do)
}

func (e *Etcd) try(ctx context.Context, key string, expect int64, do clientv3.Op) (*clientv3.TxnResponse, error) {
	defer e.clients.Release()
	return e.clients.Acquire().KV.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", expect)).
		Then(do).
		Else(clientv3.OpGet(key)).
		Commit()
}

// InFlight counts the writes that are on their way to this store.
func (e *Etcd) InFlight() *atomic.Int64 { return &e.commits.inFlight }

func (e *Etcd) Delete(ctx context.Context, key string, expect int64) (int64, *KV, bool, error) {
	resp, err := e.commit(ctx, key, expect, clientv3.OpDelete(key))
	if err != nil {
		return 0, nil, false, failed("delete", err)
	}
	if !resp.Succeeded {
		return 0, elsewhere(resp), false, nil
	}
	return resp.Header.Revision, nil, true, nil
}

// elsewhere is what stands under the key of a lost compare.
func elsewhere(resp *clientv3.TxnResponse) *KV {
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return nil
	}
	kv := fromEtcd(kvs[0])
	return &kv
}

// Revision asks for a key that is never there: the answer's header counts. A SQL
// database takes no key with a zero in it.
func (e *Etcd) Revision(ctx context.Context) (int64, error) {
	resp, err := e.get(ctx, "/", clientv3.WithCountOnly())
	if err != nil {
		return 0, failed("revision", err)
	}
	return resp.Header.Revision, nil
}

// Newest is Revision where that is known without a question.
func (e *Etcd) Newest() (revision int64, ok bool) {
	if m, ok := e.clients.(interface{ Newest() (int64, bool) }); ok {
		return m.Newest()
	}
	return 0, false
}

func (e *Etcd) Watch(ctx context.Context, prefix string, from int64) (<-chan Batch, error) {
	in := e.clients.Acquire().Watch(clientv3.WithRequireLeader(ctx), prefix,
		clientv3.WithPrefix(), clientv3.WithRev(from+1), clientv3.WithProgressNotify())
	e.clients.Release()
	out := make(chan Batch)
	run.Go("store: watch", func() {
		defer close(out)
		for resp := range in {
			b := Batch{Revision: resp.Header.Revision}
			if err := resp.Err(); err != nil {
				b.Err = known(err)
				if resp.CompactRevision != 0 {
					b.Err = ErrCompacted
				}
			}
			for _, ev := range resp.Events {
				e := Event{KV: fromEtcd(ev.Kv), Deleted: ev.Type == clientv3.EventTypeDelete}
				if e.Deleted {
					e.Value = nil // kine repeats what was there
				}
				b.Events = append(b.Events, e)
			}
			if n := len(b.Events); n > 0 { // the header may be ahead of what was sent
				b.Revision = b.Events[n-1].Revision
			}
			select {
			case out <- b:
			case <-ctx.Done():
				return
			}
			if b.Err != nil {
				return
			}
		}
	})
	return out, nil
}

func (e *Etcd) Compact(ctx context.Context, rev int64) error {
	defer e.clients.Release()
	if _, err := e.clients.Acquire().Compact(ctx, rev); err != nil {
		return failed("compact", err)
	}
	return nil
}

func (e *Etcd) Close() error {
	if o, ok := e.clients.(one); ok {
		return o.Client.Close()
	}
	return nil
}

// failed is what the store says when etcd fails an operation. What etcd says of
// itself stands alone, as clients of upstream's server read it.
func failed(operation string, err error) error {
	err = known(err)
	if answered, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return answered
	}
	return fmt.Errorf("etcd %s: %w", operation, err)
}

// known turns etcd's errors into the store's.
func known(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return ErrCompacted
	case errors.Is(err, rpctypes.ErrFutureRev):
		return ErrFuture
	case errors.Is(err, rpctypes.ErrRequestTooLarge), status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max"):
		return ErrTooLarge
	}
	return err
}

// leases shares one lease among the keys put with the same TTL within a minute,
// since a lease costs etcd more than a key does.
type leases struct {
	grant func(ctx context.Context, ttl int64) (clientv3.LeaseID, error)
	mu    sync.Mutex
	last  map[time.Duration]lease
}

type lease struct {
	id    clientv3.LeaseID
	until time.Time
	uses  int
}

const (
	leaseSharing = time.Minute
	leaseUses    = 1000
)

func (l *leases) get(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	share := min(leaseSharing, ttl/20)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if e, ok := l.last[ttl]; ok && now.Before(e.until) && e.uses < leaseUses {
		e.uses++
		l.last[ttl] = e
		return e.id, nil
	}
	id, err := l.grant(ctx, int64((ttl+share+time.Second-1)/time.Second))
	if err != nil {
		return 0, err
	}
	if l.last == nil {
		l.last = map[time.Duration]lease{}
	}
	l.last[ttl] = lease{id, now.Add(share), 1}
	return id, nil
}

// Size is how large etcd's file is.
func (e *Etcd) Size(ctx context.Context) (int64, error) {
	defer e.clients.Release()
	client := e.clients.Acquire()
	endpoint := "" // in process there is but one
	if all := client.Endpoints(); len(all) > 0 {
		endpoint = all[0]
	}
	status, err := client.Status(ctx, endpoint)
	if err != nil {
		return 0, fmt.Errorf("ask etcd for its status: %w", err)
	}
	return status.DbSize, nil
}
