package watchcache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"knarr/controlplane/apiserver/registry"
)

func podAt(key string, r *rand.Rand) *corev1.Pod {
	ns, name, _ := strings.Cut(key, "/")
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{}}}
	if i := r.IntN(5); i > 0 {
		p.Labels["app"] = fmt.Sprint("app", i)
	}
	p.Labels["tier"] = []string{"front", "back", ""}[r.IntN(3)]
	p.Spec.NodeName = []string{"", "a", "b"}[r.IntN(3)]
	return p
}

// selected is what a list should find, by the plain rules.
func selected(all map[string]*corev1.Pod, q Query) []string {
	var keys []string
	for key, p := range all {
		set := fields.Set{"spec.nodeName": p.Spec.NodeName, "metadata.name": p.Name}
		if (q.Namespace == "" || q.Namespace == p.Namespace) && q.Labels.Matches(labels.Set(p.Labels)) && q.Fields.Matches(set) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func TestListsThroughAnIndexFindTheSame(t *testing.T) {
	c, _, _ := start(t)
	r := c.Resource(corev1.SchemeGroupVersion.WithResource("pods"))
	ctx := t.Context()
	random := rand.New(rand.NewPCG(7, 8))
	all := map[string]*corev1.Pod{}
	change := func(n int) {
		for range n {
			key := fmt.Sprintf("ns%d/p%03d", random.IntN(3), random.IntN(200))
			rec := r.Peek(key)
			var err error
			switch {
			case rec == nil:
				all[key] = podAt(key, random)
				_, err = r.Create(ctx, key, all[key].DeepCopy())
			case random.IntN(4) == 0:
				delete(all, key)
				_, err = r.Delete(ctx, key, rec)
			default:
				all[key] = podAt(key, random)
				_, err = r.Update(ctx, key, rec, all[key].DeepCopy())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	change(1200)
	if n := r.state.Load().tree.Len(); n < fewRecords {
		t.Fatalf("%d records are too few for indexes", n)
	}
	queries := []Query{
		{Labels: parse("app=app1")}, {Labels: parse("app in (app2),tier!=front")}, {Labels: parse("tier=")}, {Labels: parse("app=none")},
		{Labels: parse("!app")}, {Labels: parse("app in (app1,app2)")},
		{Labels: labels.Everything(), Fields: fields.OneTermEqualSelector("spec.nodeName", "a")},
		{Labels: parse("app=app3"), Fields: fields.OneTermEqualSelector("spec.nodeName", "")},
		{Labels: labels.Everything(), Fields: fields.OneTermNotEqualSelector("spec.nodeName", "a")},
	}
	for round := range 20 {
		for _, q := range queries {
			for _, q.Namespace = range []string{"", "ns1"} {
				if q.Fields == nil {
					q.Fields = fields.Everything()
				}
				want := selected(all, q)
				if got := pages(t, ctx, r, q, 0); !slices.Equal(got, want) {
					t.Fatalf("round %d, %v %v in %q: %v, want %v", round, q.Labels, q.Fields, q.Namespace, got, want)
				}
				if got := pages(t, ctx, r, q, 7); !slices.Equal(got, want) {
					t.Fatalf("round %d, %v %v in %q, by pages: %v, want %v", round, q.Labels, q.Fields, q.Namespace, got, want)
				}
			}
		}
		change(15)
	}
	if n := len(r.indexes); n == 0 || n > maxIndexes {
		t.Errorf("%d indexes were made", n)
	}
}

func pages(t *testing.T, ctx context.Context, r *Resource, q Query, limit int64) []string {
	t.Helper()
	keys := []string{}
	for q.Limit = limit; ; {
		l, err := r.List(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range l.Records {
			keys = append(keys, rec.Key)
		}
		if q.Continue = l.Continue; q.Continue == "" {
			return keys
		}
	}
}

func parse(s string) labels.Selector {
	sel, err := labels.Parse(s)
	if err != nil {
		panic(err)
	}
	return sel
}

// The workload of KEP-2340: a selector that matches nothing among very many.
func BenchmarkListSelectsNothing(b *testing.B) {
	kind := registry.Resources[slices.IndexFunc(registry.Resources, func(r registry.Resource) bool { return r.GVK().Kind == "Pod" })]
	r := newResource(&Cache{budget: &budget{limit: defaultBudget}}, kind)
	random := rand.New(rand.NewPCG(1, 2))
	t := &tree{}
	for i := range 300_000 {
		key := fmt.Sprintf("ns%d/pod-%d", i%100, i)
		p := podAt(key, random)
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: "registry.example.com/app/main:v1.2.3", Args: []string{strings.Repeat("x", 500)}}}
		_, message, err := r.codec.encode(p)
		if err != nil {
			b.Fatal(err)
		}
		t.Set(key, &Record{Key: key, Revision: int64(i + 1), codec: r.codec, message: message})
	}
	r.reset(t, 300_000)
	for _, bench := range []struct {
		name string
		q    Query
	}{
		{"label", Query{Labels: parse("app=nothing")}},
		{"field", Query{Fields: fields.OneTermEqualSelector("spec.nodeName", "nowhere")}},
		{"label exists, no index", Query{Labels: parse("nothing")}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			m := r.matcher(&bench.q)
			st := r.state.Load()
			for b.Loop() {
				if err := r.walk(st, &bench.q, "", func(rec *Record) (bool, error) {
					ok, err := m.match(rec)
					if ok {
						b.Fatal("something was found")
					}
					return true, err
				}); err != nil {
					b.Fatal(err)
				}
				st = r.state.Load()
			}
		})
	}
}
