package kubelet

import "testing"

func TestCountCPUs(t *testing.T) {
	for s, want := range map[string]int{"0": 1, "0-3": 4, "0-3,7": 5, "": 0} {
		if got := countCPUs(s); got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
}
