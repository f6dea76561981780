package fairness

import (
	"math/rand/v2"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"knarr/controlplane/apiserver/request"
)

func TestListSeats(t *testing.T) {
	for name, c := range map[string]struct {
		objects     int
		size        int64
		verb, query string
		named       string
		most, want  int
	}{
		"few":                       {10, 10_000, "list", "", "", 10, 1},
		"one":                       {1000, 5_000_000, "list", "", "a", 10, 1},
		"a quarter of a megabyte":   {100, 250_000, "list", "", "", 10, 3},
		"long":                      {1000, 5_000_000, "list", "", "", 100, 10},
		"very long":                 {1000, 96_000_000, "list", "", "", 100, 60},
		"at the bound":              {1000, 16_000_000, "list", "", "", 100, 10},
		"long, of a small level":    {1000, 5_000_000, "list", "", "", 4, 4},
		"a page":                    {1000, 5_000_000, "list", "limit=50", "", 100, 3},
		"a watch from a revision":   {1000, 5_000_000, "watch", "resourceVersion=5", "", 10, 1},
		"a watch from the start":    {1000, 5_000_000, "watch", "resourceVersion=0", "", 10, 10},
		"a watch with initial list": {1000, 5_000_000, "watch", "resourceVersion=5&sendInitialEvents=true", "", 10, 10},
	} {
		info := &request.Info{IsResource: true, Verb: c.verb, Resource: "pods", Name: c.named}
		if got := listSeats(c.objects, c.size, info, c.query, c.most); got != c.want {
			t.Errorf("%s: %d seats, not %d", name, got, c.want)
		}
	}
}

func TestWriteWidth(t *testing.T) {
	for watches, want := range map[int]width{
		10: {1, 5 * time.Millisecond}, 95: {10, 5 * time.Millisecond}, 400: {10, 20 * time.Millisecond},
	} {
		if got := writeWidth(watches, 10); got != want {
			t.Errorf("%d watches: %v, not %v", watches, got, want)
		}
	}
}

func TestWidest(t *testing.T) {
	l := &level{}
	l.configure(portion{})
	if got := l.widest(100); got != 100 {
		t.Errorf("without queues: %d", got)
	}
	for nominal, want := range map[int]int{3: 1, 20: 3, 62: 10, 245: 37} {
		l.configure(portion{nominal: nominal, queuing: &flowcontrolv1.QueuingConfiguration{Queues: 64, HandSize: 6}})
		if got := l.widest(100); got != want {
			t.Errorf("of %d seats: %d, not %d", nominal, got, want)
		}
	}
}

// TestWideSeats: whatever comes and goes, seats add up, nobody who could be
// served waits, and a level at rest serves even the widest.
func TestWideSeats(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	a, b := &level{name: "a"}, &level{name: "b"}
	a.nominal, a.least, a.most = 6, 3, 10
	b.nominal, b.least, b.most = 4, 4, 5
	s := &seats{}
	s.reset(map[string]*level{"a": a, "b": b}, 10)
	if s.free != 3 {
		t.Fatalf("%d are free", s.free)
	}
	type holder struct {
		l *level
		w int
	}
	var held []holder
	for range 10_000 {
		l := []*level{a, b}[random.IntN(2)]
		if w := 1 + random.IntN(8); random.IntN(2) == 0 {
			if s.take(l, w) {
				held = append(held, holder{l, w})
			} else if l.executing == 0 && (l.least > 0 || s.free > 0) {
				t.Fatalf("a level at rest refuses %d seats", w)
			}
		} else if len(held) > 0 {
			i := random.IntN(len(held))
			s.release(held[i].l, held[i].w)
			held = append(held[:i], held[i+1:]...)
		}
		used := map[*level]int{}
		for _, h := range held {
			used[h.l] += h.w
		}
		if a.executing != used[a] || b.executing != used[b] || s.free != 3-a.beyond(used[a])-b.beyond(used[b]) {
			t.Fatalf("%v: a %d, b %d, free %d", used, a.executing, b.executing, s.free)
		}
	}
	for _, h := range held {
		s.release(h.l, h.w)
	}
	if s.free != 3 || a.executing != 0 || b.executing != 0 {
		t.Errorf("at the end a %d, b %d, free %d", a.executing, b.executing, s.free)
	}
}
