package metrics

import "testing"

func TestHistogramCountsTogetherAsOneByOne(t *testing.T) {
	sizes := []int{1, 1024, 1025, 3000, 3000, 500, 1 << 20, 1 << 20}
	together, single := newHistogram(eventBounds), newHistogram(eventBounds)
	together.all(sizes)
	for _, n := range sizes {
		single.size(int64(n))
	}
	for i := range single.counts {
		if got, want := together.counts[i].Load(), single.counts[i].Load(); got != want {
			t.Errorf("bucket %d: %d, want %d", i, got, want)
		}
	}
	if got, want := together.sum.Load(), single.sum.Load(); got != want {
		t.Errorf("sum %d, want %d", got, want)
	}
}
