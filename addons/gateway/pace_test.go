package gateway

import (
	"testing"
	"time"
)

// Compilations take a sixth of the time at most, unless they take longer than a second.
func TestPace(t *testing.T) {
	var p pace
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	if got := p.wait(now); got != 0 {
		t.Errorf("the first one waits %s", got)
	}
	for took, want := range map[time.Duration]time.Duration{0: 0, time.Millisecond: 5 * time.Millisecond, 100 * time.Millisecond: 500 * time.Millisecond, 3 * time.Second: time.Second} {
		p.took(took, now)
		if got := p.wait(now); got != want {
			t.Errorf("after %s: %s, want %s", took, got, want)
		}
		if got := p.wait(now.Add(want)); got != 0 {
			t.Errorf("after %s and its rest: %s", took, got)
		}
	}
}
