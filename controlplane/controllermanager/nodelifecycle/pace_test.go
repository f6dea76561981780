package nodelifecycle

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func nodeOf(i int, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprint("z", i%3)}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
}

func defaults() (c Config) {
	c.setDefaults()
	return c
}

// outage is n nodes, of which all but the first are silent.
func outage(n int) (*reconciler, []*corev1.Node) {
	r := &reconciler{nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), count: newTally(defaults())}
	all := make([]*corev1.Node, n)
	for i := range all {
		all[i] = nodeOf(i, corev1.ConditionUnknown)
		if i == 0 {
			all[i] = nodeOf(i, corev1.ConditionTrue)
		}
		_ = r.nodes.Add(all[i])
		r.recount(all[i].Name)
	}
	return r, all
}

func TestPace(t *testing.T) {
	at := time.Unix(1e9, 0)
	const usual, slow = 10 * time.Second, 100 * time.Second
	type step struct {
		node  int
		after time.Duration
		want  bool
	}
	for name, tt := range map[string]struct {
		nodes, down int // of one zone, the last ones
		pace        Config
		steps       []step
	}{
		"one down":               {10, 1, Config{}, []step{{9, 0, true}}},
		"one every ten seconds":  {10, 2, Config{}, []step{{9, 0, true}, {8, time.Second, false}, {8, usual, true}}},
		"all down":               {10, 10, Config{}, []step{{9, 0, false}}},
		"small zone mostly down": {10, 6, Config{}, []step{{9, 0, false}}},
		"large zone mostly down": {60, 40, Config{}, []step{{59, 0, true}, {58, usual, false}, {58, slow, true}}},
		"not yet in the cache":   {10, 0, Config{}, []step{{9, 0, true}}},
		"not there":              {10, 0, Config{}, []step{{99, 0, false}}},
		"two every second":       {10, 2, Config{EvictionRate: 2}, []step{{9, 0, true}, {8, 499 * time.Millisecond, false}, {8, time.Second / 2, true}}},
		"no rate":                {10, 2, Config{EvictionRate: -1}, []step{{9, 0, false}, {9, time.Hour, false}}},
		"large from ten on":      {11, 7, Config{LargeClusterSizeThreshold: 10}, []step{{10, 0, true}, {9, usual, false}, {9, slow, true}}},
		"as slow as asked for":   {60, 40, Config{SecondaryEvictionRate: 0.05}, []step{{59, 0, true}, {58, usual, false}, {58, 2 * usual, true}}},
		"no secondary rate":      {60, 40, Config{SecondaryEvictionRate: -1}, []step{{59, 0, false}}},
		"mostly is more":         {10, 6, Config{UnhealthyZoneThreshold: 0.7}, []step{{9, 0, true}}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.pace.setDefaults()
			tally := newTally(tt.pace)
			for i := range tt.nodes {
				tally.set(fmt.Sprint("n", i), &counted{"z", i < tt.nodes-tt.down})
			}
			for _, s := range tt.steps {
				if got := tally.leave(fmt.Sprint("n", s.node), false, at.Add(s.after)); got != s.want {
					t.Errorf("node %d after %v: %v", s.node, s.after, got)
				}
			}
		})
	}
}

// The tally is that of the nodes there are, whatever came before.
func TestTally(t *testing.T) {
	r, all := outage(6)
	all[1].Labels = map[string]string{corev1.LabelTopologyZone: "elsewhere"}
	r.recount(all[1].Name)
	for _, n := range all[2:] {
		_ = r.nodes.Delete(n)
		r.recount(n.Name)
	}
	if len(r.count.nodes) != 2 || len(r.count.zones) != 2 || r.count.ready != 1 || r.count.zones["/elsewhere"].all != 1 {
		t.Errorf("%+v", r.count)
	}
}

// BenchmarkOutage is the cost for each silent node when nearly all are.
func BenchmarkOutage(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r, all := outage(n)
			now := time.Now()
			i := 0
			for b.Loop() {
				r.mayEvict(all[1+i%(n-1)], corev1.ConditionUnknown, now)
				i++
			}
		})
	}
}
