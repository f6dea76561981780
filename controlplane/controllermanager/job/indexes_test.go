package job

import (
	"testing"
	"time"
)

func TestIndexes(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "3": "3", "1,2": "1,2", "1-3": "1-3", "5,1-2,3": "1-3,5", "8-20": "8,9", "x,4,2-y": "4", "0,2,4-6,9": "0,2,4-6,9",
	} {
		if got := parseIndexes(in, 10).String(); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestWaitAfter(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 10 * time.Second, 2: 20 * time.Second, 4: 80 * time.Second, 7: 10 * time.Minute, 1000: 10 * time.Minute} {
		if got := waitAfter(n); got != want {
			t.Errorf("after %d failures: %v, want %v", n, got, want)
		}
	}
}
