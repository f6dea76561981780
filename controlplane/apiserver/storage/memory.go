package storage

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"knarr/internal/run"
)

// Memory is the store's twin in memory, for tests: the same contract, nothing
// on disk.
type Memory struct {
	mu        sync.Mutex
	revision  int64
	compacted int64
	current   btree.Map[string, KV]
	history   []change
	timers    map[string]*time.Timer
	watchers  map[*memoryWatch]struct{}
	closed    bool
}

// change is an event and what was there before it.
type change struct {
	Event
	prev *KV
}

// NewMemory returns an empty store at revision 1, as etcd's is.
func NewMemory() *Memory {
	return &Memory{
		revision: 1, timers: map[string]*time.Timer{}, watchers: map[*memoryWatch]struct{}{},
	}
}

func (m *Memory) Get(_ context.Context, key string) (*KV, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.get(key), m.revision, nil
}

func (m *Memory) get(key string) *KV {
	if kv, ok := m.current.Get(key); ok {
		return &kv
	}
	return nil
}

func (m *Memory) List(_ context.Context, prefix, after string, limit int, at int64) (kvs []KV, rev int64, more bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &m.current
	switch {
	case at == 0:
		at = m.revision
	case at > m.revision:
		return nil, 0, false, ErrFuture
	case at < m.compacted:
		return nil, 0, false, ErrCompacted
	case at < m.revision:
		t = m.current.Copy()
		for i := len(m.history) - 1; i >= 0 && m.history[i].Revision > at; i-- {
			if prev := m.history[i].prev; prev != nil {
				t.Set(prev.Key, *prev)
			} else {
				t.Delete(m.history[i].Key)
			}
		}
	}
	from := prefix
	if after >= prefix && after != "" {
		from = after + "\x00"
	}
	t.Ascend(from, func(key string, kv KV) bool {
		if !strings.HasPrefix(key, prefix) {
			return false
		}
		if limit > 0 && len(kvs) == limit {
			more = true
			return false
		}
		kvs = append(kvs, kv)
		return true
	})
	return kvs, at, more, nil
}

func (m *Memory) Put(_ context.Context, key string, value []byte, expect int64, ttl time.Duration) (rev int64, current *KV, ok bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	prev := m.get(key)
	if revisionOf(prev) != expect {
		return 0, prev, false, nil
	}
	m.revision++
	kv := KV{Key: key, Value: value, Revision: m.revision, Created: m.revision}
	if prev != nil {
		kv.Created = prev.Created
	}
	m.current.Set(key, kv)
	if t := m.timers[key]; t != nil {
		t.Stop()
		delete(m.timers, key)
	}
	if ttl > 0 && !m.closed {
		rev := m.revision
		m.timers[key] = run.AfterFunc("store: lease", (ttl + time.Second - 1).Truncate(time.Second), func() {
			_, _, _, _ = m.Delete(context.Background(), key, rev)
		})
	}
	m.record(change{Event{KV: kv}, prev})
	return m.revision, nil, true, nil
}

func (m *Memory) Delete(_ context.Context, key string, expect int64) (rev int64, current *KV, ok bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	prev := m.get(key)
	if prev == nil || prev.Revision != expect {
		return 0, prev, false, nil
	}
	m.revision++
	m.current.Delete(key)
	if t := m.timers[key]; t != nil {
		t.Stop()
		delete(m.timers, key)
	}
	m.record(change{Event{KV: KV{Key: key, Revision: m.revision}, Deleted: true}, prev})
	return m.revision, nil, true, nil
}

func revisionOf(kv *KV) int64 {
	if kv == nil {
		return 0
	}
	return kv.Revision
}

func (m *Memory) record(c change) {
	m.history = append(m.history, c)
	for w := range m.watchers {
		w.cond.Broadcast()
	}
}

func (m *Memory) Revision(context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revision, nil
}

type memoryWatch struct{ cond *sync.Cond }

// batchSize bounds the events of one batch.
const batchSize = 256

func (m *Memory) Watch(ctx context.Context, prefix string, from int64) (<-chan Batch, error) {
	out := make(chan Batch)
	w := &memoryWatch{sync.NewCond(&m.mu)}
	m.mu.Lock()
	m.watchers[w] = struct{}{}
	m.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		w.cond.Broadcast()
	})
	run.Go("store: watch", func() {
		defer close(out)
		defer stop()
		defer func() {
			m.mu.Lock()
			delete(m.watchers, w)
			m.mu.Unlock()
		}()
		for {
			batch, ok := m.next(ctx, w, prefix, from)
			if !ok {
				return
			}
			select {
			case out <- batch:
			case <-ctx.Done():
				return
			}
			if batch.Err != nil {
				return
			}
			from = batch.Revision
		}
	})
	return out, nil
}

// next waits for changes after revision from.
func (m *Memory) next(ctx context.Context, w *memoryWatch, prefix string, from int64) (Batch, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ctx.Err() == nil {
		if from < m.compacted {
			return Batch{Err: ErrCompacted}, true
		}
		b := Batch{Revision: from}
		i := len(m.history)
		for i > 0 && m.history[i-1].Revision > from {
			i--
		}
		for ; i < len(m.history) && len(b.Events) < batchSize; i++ {
			b.Revision = m.history[i].Revision
			if strings.HasPrefix(m.history[i].Key, prefix) {
				b.Events = append(b.Events, m.history[i].Event)
			}
		}
		if b.Revision > from {
			return b, true
		}
		w.cond.Wait()
	}
	return Batch{}, false
}

func (m *Memory) Compact(_ context.Context, rev int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case rev > m.revision:
		return ErrFuture
	case rev <= m.compacted:
		return ErrCompacted
	}
	m.compacted = rev
	i := 0
	for i < len(m.history) && m.history[i].Revision <= rev {
		i++
	}
	m.history = append([]change(nil), m.history[i:]...)
	for w := range m.watchers {
		w.cond.Broadcast()
	}
	return nil
}

func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, t := range m.timers {
		t.Stop()
	}
	return nil
}
