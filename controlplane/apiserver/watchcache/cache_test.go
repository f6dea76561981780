package watchcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/storage"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

func configMap(ns, name string, set ...string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"app": name}}, Data: map[string]string{"v": fmt.Sprint(set)}}
}

// start runs a cache over the memory store in the test's bubble.
func start(t testing.TB) (*Cache, *Resource, *storage.Memory) {
	store := storage.NewMemory()
	c := New(store, registry.Resources)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; store.Close() })
	<-c.Ready()
	return c, c.Resource(configMaps), store
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestWriteAndRead(t *testing.T) {
	_, r, _ := start(t)
	ctx := t.Context()
	ok := must[*Record](t)
	a := ok(r.Create(ctx, "ns/a", configMap("ns", "a", "1")))
	if _, err := r.Create(ctx, "ns/a", configMap("ns", "a", "1")); !errors.Is(err, ErrExists) {
		t.Fatalf("second create: %v", err)
	}
	if got := ok(r.Get(ctx, "ns/a", "")); got != a {
		t.Errorf("the reader got another record than the writer")
	}
	b := ok(r.Update(ctx, "ns/a", a, configMap("ns", "a", "2")))
	if _, err := r.Update(ctx, "ns/a", a, configMap("ns", "a", "3")); !errors.Is(err, ErrConflict) {
		t.Fatalf("stale update: %v", err)
	}
	if same := ok(r.Update(ctx, "ns/a", b, configMap("ns", "a", "2"))); same != b {
		t.Errorf("an update that changes nothing was written: %d after %d", same.Revision, b.Revision)
	}
	if _, err := r.Delete(ctx, "ns/a", a); !errors.Is(err, ErrConflict) {
		t.Fatalf("stale delete: %v", err)
	}
	gone := ok(r.Delete(ctx, "ns/a", b))
	if o, _ := gone.Object(); o.GetResourceVersion() != strconv.FormatInt(gone.Revision, 10) || gone.Revision <= b.Revision {
		t.Errorf("deleted at %d, object says %s", gone.Revision, o.GetResourceVersion())
	}
	if _, err := r.Get(ctx, "ns/a", ""); !errors.Is(err, ErrNotFound) {
		t.Fatalf("get after delete: %v", err)
	}
	if _, err := r.Update(ctx, "ns/a", b, configMap("ns", "a", "9")); !errors.Is(err, ErrNotFound) {
		t.Fatalf("update after delete: %v", err)
	}
}

// What is stored and served must be what upstream's codec would write.
func TestBytesAreUpstreams(t *testing.T) {
	_, r, store := start(t)
	rec := must[*Record](t)(r.Create(t.Context(), "ns/a", configMap("ns", "a", "1")))
	upstream := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	encode := func(cm *corev1.ConfigMap) []byte {
		cm.APIVersion, cm.Kind = "v1", "ConfigMap"
		var buf bytes.Buffer
		if err := upstream.Encode(cm, &buf); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	kv, _, err := store.Get(t.Context(), "/registry/configmaps/ns/a")
	if err != nil {
		t.Fatal(err)
	}
	if want := encode(configMap("ns", "a", "1")); !bytes.Equal(kv.Value, want) {
		t.Errorf("stored\n%q\nwant\n%q", kv.Value, want)
	}
	with := configMap("ns", "a", "1")
	with.ResourceVersion = strconv.FormatInt(rec.Revision, 10)
	want, _ := envelopeRaw(encode(with))
	if got := rec.Stored(); !bytes.Equal(got, want) {
		t.Errorf("served\n%q\nwant\n%q", got, want)
	}
	again, err := r.codec.record("ns/a", kv.Value, rec.Revision)
	if err != nil {
		t.Fatal(err)
	}
	one, _ := rec.AppendJSON(nil)
	two, _ := again.AppendJSON(nil)
	if !bytes.Equal(one, two) {
		t.Errorf("written %s, read %s", one, two)
	}
}

func TestListPagesAreOneSnapshot(t *testing.T) {
	_, r, _ := start(t)
	ctx := t.Context()
	for i := range 10 {
		must[*Record](t)(r.Create(ctx, fmt.Sprintf("ns/%d", i), configMap("ns", strconv.Itoa(i))))
	}
	must[*Record](t)(r.Create(ctx, "other/x", configMap("other", "x")))
	first := must[*List](t)(r.List(ctx, Query{Namespace: "ns", Limit: 4}))
	if len(first.Records) != 4 || *first.Remaining != 6 {
		t.Fatalf("%d records, %d remaining", len(first.Records), *first.Remaining)
	}
	must[*Record](t)(r.Delete(ctx, "ns/5", r.Peek("ns/5")))
	must[*Record](t)(r.Create(ctx, "ns/55", configMap("ns", "55")))
	rest := must[*List](t)(r.List(ctx, Query{Namespace: "ns", Continue: first.Continue}))
	if len(rest.Records) != 6 || rest.Revision != first.Revision || rest.Records[1].Key != "ns/5" {
		t.Fatalf("%d records at %d, want 6 at %d", len(rest.Records), rest.Revision, first.Revision)
	}
	sel := labels.SelectorFromSet(labels.Set{"app": "55"})
	if l := must[*List](t)(r.List(ctx, Query{Labels: sel})); len(l.Records) != 1 {
		t.Fatalf("selector found %d", len(l.Records))
	}
	if l := must[*List](t)(r.List(ctx, Query{})); len(l.Records) != 11 {
		t.Fatalf("all namespaces: %d", len(l.Records))
	}
}

// drain polls until want deliveries came.
func drain(t *testing.T, w *Watcher, want int) []Delivery {
	t.Helper()
	var got []Delivery
	for len(got) < want {
		<-w.C()
		var err error
		if got, err = w.Poll(got); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, r, _ := start(t)
		ctx := t.Context()
		a := must[*Record](t)(r.Create(ctx, "ns/a", configMap("ns", "a")))
		yes := true
		all := must[*Watcher](t)(r.Watch(ctx, WatchQuery{SendInitialEvents: &yes}))
		defer all.Stop()
		got := drain(t, all, 2)
		if got[0].Type != watch.Added || !got[1].InitialEnd || got[1].Revision < a.Revision {
			t.Fatalf("initial state %+v", got)
		}
		one := must[*Watcher](t)(r.Watch(ctx, WatchQuery{Namespace: "ns", Name: "b", ResourceVersion: strconv.FormatInt(a.Revision, 10)}))
		defer one.Stop()
		sel := must[*Watcher](t)(r.Watch(ctx, WatchQuery{Labels: labels.SelectorFromSet(labels.Set{"app": "b"})}))
		defer sel.Stop()

		b := must[*Record](t)(r.Create(ctx, "ns/b", configMap("ns", "b")))
		changed := configMap("ns", "b")
		changed.Labels["app"] = "c"
		b = must[*Record](t)(r.Update(ctx, "ns/b", b, changed))
		must[*Record](t)(r.Delete(ctx, "ns/a", a))
		must[*Record](t)(r.Delete(ctx, "ns/b", b))

		types := func(ds []Delivery) (s string) {
			for _, d := range ds {
				s += string(d.Type)[:1]
			}
			return s
		}
		if s := types(drain(t, all, 4)); s != "AMDD" {
			t.Errorf("watch of everything saw %s", s)
		}
		if s := types(drain(t, one, 3)); s != "AMD" {
			t.Errorf("watch of one object saw %s", s)
		}
		if s := types(drain(t, sel, 2)); s != "AD" {
			t.Errorf("watch by label saw %s", s)
		}
		late := must[*Watcher](t)(r.Watch(ctx, WatchQuery{Namespace: "ns", ResourceVersion: strconv.FormatInt(a.Revision, 10)}))
		defer late.Stop()
		if s := types(drain(t, late, 4)); s != "AMDD" {
			t.Errorf("late watch of the namespace saw %s", s)
		}
		if frame, err := got[0].Frame(JSON, r); err != nil || !bytes.HasPrefix(frame, []byte(`{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{`)) {
			t.Errorf("frame %s, %v", frame, err)
		}
	})
}

func TestSlowWatcherIsExpired(t *testing.T) {
	_, r, _ := start(t)
	ctx := t.Context()
	w := must[*Watcher](t)(r.Watch(ctx, WatchQuery{ResourceVersion: "0"}))
	defer w.Stop()
	rec := must[*Record](t)(r.Create(ctx, "ns/a", configMap("ns", "a")))
	for i := range maxEvents + 1 {
		rec = must[*Record](t)(r.Update(ctx, "ns/a", rec, configMap("ns", "a", strconv.Itoa(i))))
	}
	must[*Record](t)(r.Get(ctx, "ns/a", ""))
	_, err := w.Poll(nil)
	var old *TooOldError
	if !errors.As(err, &old) {
		t.Fatalf("got %v, want a TooOldError", err)
	}
	if _, err := r.Watch(ctx, WatchQuery{ResourceVersion: "2"}); !errors.As(err, &old) {
		t.Fatalf("watch from long ago: %v", err)
	}
}

// TestQuietLogIsForgotten: what was a busy resource's does not stay in memory until it is busy
// again. Who saw all of it goes on from there, who saw less begins anew.
func TestQuietLogIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r, _ := start(t)
		ctx := t.Context()
		first := must[*Record](t)(r.Create(ctx, "ns/a", configMap("ns", "a")))
		rec := first
		for i := range 4 * keep {
			rec = must[*Record](t)(r.Update(ctx, "ns/a", rec, configMap("ns", "a", strconv.Itoa(i))))
		}
		events := func() int {
			r.mu.RLock()
			defer r.mu.RUnlock()
			return len(r.main.events)
		}
		other := c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"})
		tick := func(name string) {
			must[*Record](t)(other.Create(ctx, "ns/"+name, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}))
			must[*Record](t)(other.Get(ctx, "ns/"+name, ""))
			synctest.Wait()
		}
		time.Sleep(maxAge - time.Minute)
		if tick("young"); events() != 4*keep+1 {
			t.Fatalf("%d changes are left before they are old", events())
		}
		time.Sleep(2 * time.Minute)
		if tick("old"); events() > keep {
			t.Errorf("%d changes are left that nobody asks for", events())
		}
		var old *TooOldError
		if _, err := r.Watch(ctx, WatchQuery{ResourceVersion: strconv.FormatInt(first.Revision, 10)}); !errors.As(err, &old) {
			t.Errorf("a watch from long ago: %v", err)
		}
		w := must[*Watcher](t)(r.Watch(ctx, WatchQuery{ResourceVersion: strconv.FormatInt(rec.Revision, 10)}))
		defer w.Stop()
		must[*Record](t)(r.Update(ctx, "ns/a", rec, configMap("ns", "a", "again")))
		if got := drain(t, w, 1); got[0].Type != watch.Modified {
			t.Errorf("a watch from the newest change saw %v", got[0].Type)
		}
	})
}

func TestFutureRevisionTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, r, _ := start(t)
		before := time.Now()
		_, err := r.List(t.Context(), Query{ResourceVersion: "1000"})
		var tooNew *TooNewError
		if !errors.As(err, &tooNew) || time.Since(before) != catchUp {
			t.Fatalf("%v after %v", err, time.Since(before))
		}
	})
}

// A cache that is behind its store is waited for, for longer than a revision
// that only a client has named.
func TestReadersWaitForWhatTheStoreHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r, _ := start(t)
		ask := c.fresh.ask
		c.fresh.ask = func(ctx context.Context) (int64, error) {
			rev, err := ask(ctx)
			return rev + 1, err
		}
		before := time.Now()
		time.AfterFunc(2*catchUp, func() { _, _ = r.Create(context.Background(), "ns/a", configMap("ns", "a", "1")) })
		if _, err := r.List(t.Context(), Query{}); err != nil || time.Since(before) != 2*catchUp {
			t.Errorf("%v after %v", err, time.Since(before))
		}
		before = time.Now()
		var tooNew *TooNewError
		if _, err := r.List(t.Context(), Query{}); !errors.As(err, &tooNew) || time.Since(before) != askTimeout {
			t.Errorf("%v after %v", err, time.Since(before))
		}
	})
}

func BenchmarkCreate(b *testing.B) {
	_, r, _ := start(b)
	i := 0
	for b.Loop() {
		i++
		name := strconv.Itoa(i)
		if _, err := r.Create(b.Context(), "ns/"+name, configMap("ns", name)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkList5000(b *testing.B) {
	_, r, _ := start(b)
	for i := range 5000 {
		name := strconv.Itoa(i)
		must[*Record](b)(r.Create(b.Context(), "ns/"+name, configMap("ns", name)))
	}
	for b.Loop() {
		l, err := r.List(b.Context(), Query{})
		if err != nil || len(l.Records) != 5000 {
			b.Fatal(len(l.Records), err)
		}
	}
}
