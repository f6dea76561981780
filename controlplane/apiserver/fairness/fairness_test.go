package fairness

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/watchcache"
)

// world is a cache in a synctest bubble.
type world struct {
	t     testing.TB
	ctx   context.Context
	cache *watchcache.Cache
}

func newWorld(t testing.TB, ctx context.Context) *world {
	store := storage.NewMemory()
	w := &world{t, ctx, watchcache.New(store, registry.Resources)}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	go func() { done <- w.cache.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		store.Close()
	})
	<-w.cache.Ready()
	return w
}

func (w *world) put(objects ...registry.Object) {
	w.t.Helper()
	for _, o := range objects {
		gvr := flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas")
		if _, ok := o.(*flowcontrolv1.PriorityLevelConfiguration); ok {
			gvr.Resource = "prioritylevelconfigurations"
		}
		r := w.cache.Resource(gvr)
		o.SetUID(types.UID("uid-of-" + o.GetName()))
		r.Kind().Defaults(o)
		var err error
		if old := r.Peek(o.GetName()); old != nil {
			_, err = r.Update(w.ctx, o.GetName(), old, o)
		} else {
			_, err = r.Create(w.ctx, o.GetName(), o)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	if err := w.cache.Sync(w.ctx); err != nil {
		w.t.Fatal(err)
	}
}

func levelOf(name string, shares int32, change func(*flowcontrolv1.LimitedPriorityLevelConfiguration)) *flowcontrolv1.PriorityLevelConfiguration {
	l := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	l.Spec.Type = flowcontrolv1.PriorityLevelEnablementLimited
	l.Spec.Limited = &flowcontrolv1.LimitedPriorityLevelConfiguration{
		NominalConcurrencyShares: &shares, BorrowingLimitPercent: new(int32(0)),
		LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
	}
	if change != nil {
		change(l.Spec.Limited)
	}
	return l
}

func queues(n, hand, length int32) func(*flowcontrolv1.LimitedPriorityLevelConfiguration) {
	return func(m *flowcontrolv1.LimitedPriorityLevelConfiguration) {
		m.LimitResponse = flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue,
			Queuing: &flowcontrolv1.QueuingConfiguration{Queues: n, HandSize: hand, QueueLengthLimit: length}}
	}
}

// schemaFor sends a user's requests to the level of the same name as the schema.
func schemaFor(name, who string) *flowcontrolv1.FlowSchema {
	s := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}}
	s.Spec.PriorityLevelConfiguration.Name = name
	s.Spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByNamespaceType}
	s.Spec.Rules = []flowcontrolv1.PolicyRulesWithSubjects{{
		Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: who}}},
		ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"},
			Namespaces: []string{"*"}, ClusterScope: true}},
	}}
	return s
}

func podsIn(namespace string) *request.Info {
	return &request.Info{IsResource: true, Verb: "list", Version: "v1", Resource: "pods", Namespace: namespace}
}

func (w *world) enter(d *Dispatcher, who, namespace string) (*Class, bool) {
	c := d.Classify(&user.DefaultInfo{Name: who}, podsIn(namespace))
	ok := d.Enter(w.ctx, &c)
	return &c, ok
}

const timeout = 15 * time.Second

func bubble(t *testing.T, f func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		f(newWorld(t, ctx))
	})
}

func TestClassify(t *testing.T) {
	bubble(t, func(w *world) {
		for _, list := range [][]*flowcontrolv1.FlowSchema{bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas} {
			for _, s := range list {
				w.put(s.DeepCopy())
			}
		}
		for _, list := range [][]*flowcontrolv1.PriorityLevelConfiguration{bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations} {
			for _, l := range list {
				w.put(l.DeepCopy())
			}
		}
		nowhere := schemaFor("nowhere", "bob")
		nowhere.Spec.MatchingPrecedence = 2
		w.put(nowhere)
		d := New(w.cache, 600, timeout)
		lease := &request.Info{IsResource: true, Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: "kube-system"}
		status := &request.Info{IsResource: true, Verb: "patch", Resource: "nodes", Subresource: "status", Name: "n"}
		for i, c := range []struct {
			who    string
			groups []string
			info   *request.Info
			want   string
		}{
			{"admin", []string{"system:masters"}, podsIn("a"), "exempt"},
			{"bob", []string{"system:authenticated"}, podsIn("a"), "global-default"},
			{"stranger", nil, podsIn("a"), "catch-all"},
			{"system:anonymous", []string{"system:unauthenticated"}, &request.Info{Path: "/livez", Verb: "get"}, "probes"},
			{"system:anonymous", []string{"system:unauthenticated"}, &request.Info{Path: "/livezz", Verb: "get"}, "global-default"},
			{"system:kube-scheduler", []string{"system:authenticated"}, podsIn("a"), "kube-scheduler"},
			{"system:kube-scheduler", []string{"system:authenticated"}, lease, "system-leader-election"},
			{"system:node:n", []string{"system:nodes", "system:authenticated"}, podsIn("a"), "system-nodes"},
			{"system:node:n", []string{"system:nodes", "system:authenticated"}, status, "system-node-high"},
			{"system:serviceaccount:kube-system:x", []string{"system:serviceaccounts"}, podsIn("a"), "kube-system-service-accounts"},
			{"system:serviceaccount:kube-systemx:x", []string{"system:serviceaccounts"}, podsIn("a"), "service-accounts"},
		} {
			class := d.Classify(&user.DefaultInfo{Name: c.who, Groups: c.groups}, c.info)
			if got := class.SchemaUID[0]; got != "uid-of-"+c.want {
				t.Errorf("%d: %s", i, got)
			}
		}
		w.put(levelOf("nowhere", 1, nil)) // now it is somewhere, at once
		if c, _ := w.enter(d, "bob", "a"); c.LevelUID[0] != "uid-of-nowhere" {
			t.Error(c.LevelUID)
		}
	})
}

func TestShare(t *testing.T) {
	lend := func(percent, borrow int32) func(*flowcontrolv1.LimitedPriorityLevelConfiguration) {
		return func(m *flowcontrolv1.LimitedPriorityLevelConfiguration) {
			m.LendablePercent, m.BorrowingLimitPercent = &percent, &borrow
		}
	}
	for i, p := range share([]*flowcontrolv1.PriorityLevelConfiguration{
		levelOf("a", 30, lend(50, 0)), levelOf("b", 10, lend(0, 100)), levelOf("c", 0, lend(0, 50)),
	}, 10) {
		want := [][3]int{{8, 4, 8}, {3, 3, 6}, {0, 0, 0}}[i]
		if got := [3]int{p.nominal, p.least, p.most}; got != want {
			t.Errorf("%s: %v, not %v", p.config.Name, got, want)
		}
	}
}

// TestIsolation: what one level does cannot keep another from its seats.
func TestIsolation(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(levelOf("a", 5, nil), levelOf("b", 5, nil), schemaFor("a", "ann"), schemaFor("b", "bob"))
		d := New(w.cache, 9, timeout) // with catch-all's 5 shares: 3 each
		var held []*Class
		for range 3 {
			c, ok := w.enter(d, "ann", "x")
			if !ok {
				t.Fatal("not all seats")
			}
			held = append(held, c)
		}
		if _, ok := w.enter(d, "ann", "x"); ok {
			t.Error("too many seats")
		}
		c, ok := w.enter(d, "bob", "x")
		if !ok {
			t.Fatal("kept out by others")
		}
		d.Leave(c)
		for _, c := range held {
			d.Leave(c)
		}
		if c, ok = w.enter(d, "ann", "x"); !ok {
			t.Fatal("seats are not given back")
		}
		d.Leave(c)
		if d.seats.free != 0 {
			t.Errorf("%d seats came out of nowhere", d.seats.free)
		}
	})
}

// TestBorrow: seats that a level lends are the others' until it wants them.
func TestBorrow(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(levelOf("a", 5, func(m *flowcontrolv1.LimitedPriorityLevelConfiguration) { m.BorrowingLimitPercent = nil }),
			levelOf("b", 5, func(m *flowcontrolv1.LimitedPriorityLevelConfiguration) { m.LendablePercent = new(int32(67)) }),
			schemaFor("a", "ann"), schemaFor("b", "bob"))
		d := New(w.cache, 9, timeout)
		var held []*Class
		for {
			c, ok := w.enter(d, "ann", "x")
			if !ok {
				break
			}
			held = append(held, c)
		}
		if len(held) != 5 { // 3 and the 2 that b lends
			t.Errorf("%d seats", len(held))
		}
		first, ok := w.enter(d, "bob", "x")
		if !ok {
			t.Fatal("the last seat is never lent")
		}
		if _, ok := w.enter(d, "bob", "x"); ok {
			t.Error("more seats than there are")
		}
		d.Leave(held[0])
		second, ok := w.enter(d, "bob", "x")
		if !ok {
			t.Fatal("a lent seat does not come back")
		}
		for _, c := range append(held[1:], first, second) {
			d.Leave(c)
		}
		if d.seats.free != 2 {
			t.Errorf("%d seats to lend", d.seats.free)
		}
	})
}

// TestQueue: requests that wait are served flow by flow, and wait no longer than
// the timeout.
func TestQueue(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(levelOf("a", 5, queues(64, 6, 2)), schemaFor("a", "ann"))
		d := New(w.cache, 2, timeout) // one seat
		holder, _ := w.enter(d, "ann", "x")
		type result struct {
			flow string
			ok   bool
		}
		results := make(chan result, 100)
		wait := func(namespace string) {
			go func() {
				c, ok := w.enter(d, "ann", namespace)
				results <- result{namespace, ok}
				if ok {
					d.Leave(c)
				}
			}()
			synctest.Wait()
		}
		for range 12 { // as many as one flow's hand can hold
			wait("greedy")
		}
		if len(results) != 0 {
			t.Fatalf("refused too early: %v", <-results)
		}
		wait("greedy")
		if r := <-results; r.ok {
			t.Error("a full queue takes more")
		}
		wait("modest")
		d.Leave(holder)
		synctest.Wait()
		position := 0
		for i := range 13 {
			r := <-results
			if !r.ok {
				t.Errorf("%d: refused", i)
			}
			if r.flow == "modest" {
				position = i
			}
		}
		if position > 6 { // one of each of the greedy flow's six queues before it
			t.Errorf("the modest flow was number %d", position)
		}
		holder, _ = w.enter(d, "ann", "x")
		began := time.Now()
		if _, ok := w.enter(d, "ann", "y"); ok || time.Since(began) != timeout {
			t.Errorf("%v after %s", ok, time.Since(began))
		}
		if l := holder.schema.level; l.waiting() || len(l.queues) != 0 {
			t.Error("who gave up is still in the queue")
		}
		d.Leave(holder)
	})
}

// TestChange: new limits count at once, and those who wait keep their place.
func TestChange(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(levelOf("a", 5, queues(8, 2, 5)), schemaFor("a", "ann"))
		d := New(w.cache, 2, timeout)
		holder, _ := w.enter(d, "ann", "x")
		done := make(chan bool, 2)
		for i := range 2 {
			go func() {
				_, ok := w.enter(d, "ann", fmt.Sprint(i))
				done <- ok
			}()
		}
		synctest.Wait()
		if len(done) != 0 {
			t.Fatal("nobody waits")
		}
		w.put(levelOf("a", 15, queues(4, 1, 5)))
		d.current()
		synctest.Wait()
		if len(done) != 1 { // 2 * 15 / 20 is 2
			t.Fatalf("%d of one more seat", len(done))
		}
		gone := w.cache.Resource(flowcontrolv1.SchemeGroupVersion.WithResource("prioritylevelconfigurations"))
		if _, err := gone.Delete(w.ctx, "a", gone.Peek("a")); err != nil {
			t.Fatal(err)
		}
		if err := w.cache.Sync(w.ctx); err != nil {
			t.Fatal(err)
		}
		if c, _ := w.enter(d, "ann", "x"); c.schema.name != "catch-all" {
			t.Errorf("a level that is gone is chosen: %s", c.schema.name)
		}
		d.Leave(holder)
		synctest.Wait()
		if len(done) != 2 {
			t.Error("who waited in a level that is gone is never served")
		}
		for range 2 {
			if !<-done {
				t.Error("who waited was refused")
			}
		}
	})
}

func TestDangling(t *testing.T) {
	bubble(t, func(w *world) {
		d := New(w.cache, 600, timeout)
		ctx, cancel := context.WithCancel(w.ctx)
		done := make(chan struct{})
		go func() {
			d.Run(ctx, func(context.Context) error { return nil })
			close(done)
		}()
		defer func() { cancel(); <-done }()
		condition := func() string {
			synctest.Wait()
			var got string
			watchcache.Each(d.flowSchemas, "", func(s *flowcontrolv1.FlowSchema) bool {
				for _, c := range s.Status.Conditions {
					got = fmt.Sprint(c.Type, " ", c.Status, " ", c.Reason)
				}
				return true
			})
			return got
		}
		w.put(schemaFor("a", "ann"))
		if got := condition(); got != "Dangling True NotFound" {
			t.Error(got)
		}
		w.put(levelOf("a", 1, nil))
		if got := condition(); got != "Dangling False Found" {
			t.Error(got)
		}
	})
}

// BenchmarkUncontended is what every request pays.
func BenchmarkUncontended(b *testing.B) {
	w := newWorld(b, context.Background())
	for _, s := range bootstrap.SuggestedFlowSchemas {
		w.put(s.DeepCopy())
	}
	for _, l := range bootstrap.SuggestedPriorityLevelConfigurations {
		w.put(l.DeepCopy())
	}
	d := New(w.cache, 600, timeout)
	who := &user.DefaultInfo{Name: "system:serviceaccount:default:default", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"}}
	info := podsIn("default")
	b.ReportAllocs()
	for b.Loop() {
		c := d.Classify(who, info)
		if !d.Enter(w.ctx, &c) {
			b.Fatal("refused")
		}
		d.Leave(&c)
	}
}
