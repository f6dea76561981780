package horizontalpodautoscaler

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

func TestSelectors(t *testing.T) {
	s := newSelectors()
	put := func(name, selector string) {
		parsed, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		s.put(cache.ObjectName{Namespace: "n", Name: name}, parsed)
	}
	put("web", "app=web")
	put("all", "tier in (a,b),app")
	put("db", "app=db,tier==a")
	put("exact", "tier=a,app=web")
	s.put(cache.ObjectName{Namespace: "other", Name: "web"}, web)
	for _, tt := range []struct {
		pod  labels.Set
		want string
	}{
		{labels.Set{"app": "web"}, "[]"},
		{labels.Set{"app": "web", "tier": "a"}, "[n/all n/exact n/web]"},
		{labels.Set{"app": "db", "tier": "a"}, "[n/all n/db]"},
		{labels.Set{"tier": "a"}, "[]"},
	} {
		if got := fmt.Sprint(s.selecting("n", []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Labels: tt.pod}}})); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.pod, got, tt.want)
		}
	}
	put("web", "app=other")
	for _, name := range []string{"web", "all", "db", "exact"} {
		s.delete(cache.ObjectName{Namespace: "n", Name: name})
	}
	if len(s.spaces) != 1 || len(s.spaces["other"].filed) != 1 || len(s.spaces["other"].labels) != 1 {
		t.Errorf("%v stays", s)
	}
}

// A counting selector tells what it is compared with.
type counting struct {
	labels.Selector
	compared func()
}

func (c counting) Matches(l labels.Labels) bool {
	c.compared()
	return c.Selector.Matches(l)
}

// unfiled files selectors that require no certain label under numbers.
func unfiled(t testing.TB, s *selectors, namespace string, n int, compared func()) {
	t.Helper()
	for i := range n {
		parsed, err := labels.Parse(fmt.Sprint("x", i))
		if err != nil {
			t.Fatal(err)
		}
		s.put(cache.ObjectName{Namespace: namespace, Name: fmt.Sprint(i)}, counting{parsed, compared})
	}
}

// distinct are pods of which no two have the same labels.
func distinct(n int) (pods []*corev1.Pod) {
	for i := range n {
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels.Set{"pod": fmt.Sprint(i), "app": "web"}}})
	}
	return pods
}

// TestUnfiledSelectors: selectors that require no certain label are compared with each set of
// labels once, however often it is looked for, and with all when one changes.
func TestUnfiledSelectors(t *testing.T) {
	const autoscalers, many = 50, 40
	s, pods, n := newSelectors(), distinct(many), 0
	compared := func() { n++ }
	unfiled(t, s, "n", autoscalers, compared)
	for range autoscalers {
		unfiled(t, s, "n", autoscalers, compared) // as each look does of its own
		if got := s.selecting("n", pods); len(got) != 0 {
			t.Fatalf("%v have pods in common", got)
		}
	}
	if n != autoscalers*many {
		t.Errorf("compared %d times, want each of %d with each of %d once", n, autoscalers, many)
	}
	all, err := labels.Parse("pod")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"3", "7"} {
		s.put(cache.ObjectName{Namespace: "n", Name: name}, all)
	}
	if got := fmt.Sprint(s.selecting("n", pods)); got != "[n/3 n/7]" {
		t.Errorf("%s have pods in common", got)
	}
	s.delete(cache.ObjectName{Namespace: "n", Name: "3"})
	if got := s.selecting("n", pods); len(got) != 0 {
		t.Errorf("%v have pods in common", got)
	}
	s.spaces["n"].sweep(time.Now().Add(time.Hour))
	if left := len(s.spaces["n"].sets); left != 0 {
		t.Errorf("%d sets of labels are remembered", left)
	}
}

// TestNamespacesApart: while the selectors of one namespace are looked at, those of others
// are too.
func TestNamespacesApart(t *testing.T) {
	s := newSelectors()
	began, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	unfiled(t, s, "slow", 1, func() { close(began); <-end })
	unfiled(t, s, "other", 1, func() {})
	go func() { s.selecting("slow", distinct(1)) }()
	<-began
	go func() { defer close(ended); s.selecting("other", distinct(1)) }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("one namespace waits for another")
	}
	close(end)
}

// Many autoscalers with labels in common are not compared with each other.
func BenchmarkSelecting(b *testing.B) {
	s := newSelectors()
	for i := range 5000 {
		s.put(cache.ObjectName{Namespace: "n", Name: fmt.Sprint(i)}, labels.SelectorFromSet(labels.Set{"app": fmt.Sprint(i), "tier": "web"}))
	}
	var all []*corev1.Pod
	for range 10 {
		all = append(all, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels.Set{"app": "7", "tier": "web"}}})
	}
	for b.Loop() {
		s.selecting("n", all)
	}
}

// Autoscalers whose selectors require no certain label, each of which looks at its pods.
func BenchmarkUnfiledSelectors(b *testing.B) {
	s, pods := newSelectors(), distinct(1000)
	unfiled(b, s, "n", 2000, func() {})
	s.selecting("n", pods)
	for b.Loop() {
		s.selecting("n", pods)
	}
}
