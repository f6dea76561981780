package kubelet

import (
	"slices"
	"testing"
	"time"
)

func TestUnusedImages(t *testing.T) {
	now := time.Unix(10000, 0)
	old := now.Add(-time.Hour)
	got := unusedImages(map[string]*imageRecord{
		"pinned": {seen: old, pinned: true}, "used": {seen: old, used: now}, "new": {seen: now},
		"b": {seen: old, used: old.Add(time.Minute)}, "a": {seen: old},
	}, now, 2*time.Minute)
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v", got)
	}
}
