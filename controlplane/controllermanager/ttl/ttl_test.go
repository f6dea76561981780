package ttl

import "testing"

func TestStep(t *testing.T) {
	now := 0
	for _, c := range []struct{ nodes, seconds int }{
		{1, 0}, {100, 0}, {101, 15}, {95, 15}, {89, 0}, {5000, 300}, {1800, 300}, {1799, 60}, {2000, 60}, {460, 30}, {0, 0},
	} {
		now = step(now, c.nodes)
		if got := steps[now].seconds; got != c.seconds {
			t.Errorf("%d nodes: %d seconds, not %d", c.nodes, got, c.seconds)
		}
	}
}
