package gateway

import (
	"testing"
	"time"
)

// A few compilations follow each other at once, and none of them waits longer than a second.
func TestPace(t *testing.T) {
	for _, tc := range []struct {
		name string
		took []time.Duration
		want time.Duration
	}{
		{"none", nil, 0},
		{"no time", []time.Duration{0}, 0},
		{"one", []time.Duration{20 * time.Millisecond}, 0},
		{"as much as may be owed", []time.Duration{100 * time.Millisecond, 100 * time.Millisecond}, 0},
		{"more", []time.Duration{100 * time.Millisecond, 100 * time.Millisecond, 20 * time.Millisecond}, 100 * time.Millisecond},
		{"long", []time.Duration{300 * time.Millisecond}, 500 * time.Millisecond},
		{"longer than that", []time.Duration{3 * time.Second, 3 * time.Second}, time.Second},
	} {
		var p pace
		now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
		for _, d := range tc.took {
			now = now.Add(d)
			p.took(d, now)
		}
		if got := p.wait(now); got != tc.want {
			t.Errorf("%s: waits %s, want %s", tc.name, got, tc.want)
		}
		if got := p.wait(now.Add(tc.want)); got != 0 {
			t.Errorf("%s: after its rest it waits %s", tc.name, got)
		}
	}
}

// Whoever changes something all the time has compilations take a sixth of it, beside
// what may be owed.
func TestPaceShare(t *testing.T) {
	var p pace
	begin := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	now, busy := begin, time.Duration(0)
	for now.Sub(begin) < time.Minute {
		now = now.Add(p.wait(now) + 20*time.Millisecond)
		busy += 20 * time.Millisecond
		p.took(20*time.Millisecond, now)
	}
	if most := now.Sub(begin)/(1+restFactor) + maxOwed/restFactor + 20*time.Millisecond; busy > most {
		t.Errorf("compilations took %s of %s, want at most %s", busy, now.Sub(begin), most)
	}
}
