package horizontalpodautoscaler

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A history is what is remembered of one autoscaler between two looks. Only the
// worker that looks at the autoscaler uses it.
type history struct {
	uid types.UID
	// due is when to look again.
	due time.Time
	// recommendations are what metrics asked for, oldest first; equal ones in a
	// row are one, with the time of the last.
	recommendations []change
	// added and removed are by how many replicas the target was changed.
	added, removed []change
}

// A change is a number of replicas at a time.
type change struct {
	replicas int32
	at       time.Time
}

// recommend remembers what metrics ask for, and forgets what is older than
// window.
func (h *history) recommend(replicas int32, now time.Time, window time.Duration) {
	h.recommendations = since(h.recommendations, now.Add(-window))
	if n := len(h.recommendations); n > 0 && h.recommendations[n-1].replicas == replicas {
		h.recommendations[n-1].at = now
		return
	}
	h.recommendations = append(h.recommendations, change{replicas, now})
}

// rescaled remembers that replicas were added or removed, for as long as a
// policy of that direction may ask.
func (h *history) rescaled(from, to int32, now time.Time, up, down time.Duration) {
	if to > from {
		h.added = append(since(h.added, now.Add(-up)), change{to - from, now})
	} else {
		h.removed = append(since(h.removed, now.Add(-down)), change{from - to, now})
	}
}

// since are the changes that are not from before start.
func since(all []change, start time.Time) []change {
	return slices.DeleteFunc(all, func(c change) bool { return c.at.Before(start) })
}

// within is by how much the changes of the period before now sum up.
func within(all []change, now time.Time, period time.Duration) (total int64) {
	for _, c := range all {
		if c.at.After(now.Add(-period)) {
			total += int64(c.replicas)
		}
	}
	return total
}
