package nearest

import (
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	names := []string{"maxPods", "podPidsLimit", "MemoryQoS", "imageGCHighThresholdPercent", "v", strings.Repeat("x", maxName+1)}
	for typed, want := range map[string]string{
		"maxPod": "maxPods", "maxPodss": "maxPods", "mxaPods": "maxPods", "MAXPODS": "maxPods", "MemoryQos": "MemoryQoS",
		"podPidLimits": "podPidsLimit", "imageGCHigh": "imageGCHighThresholdPercent",
		"": "", "Gardening": "", "ma": "", strings.Repeat("x", maxName+1): "",
	} {
		if got := Name(typed, names); got != want {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
	if got := Hint("maxPod", names); got != `; did you mean "maxPods"?` {
		t.Errorf("hint %q", got)
	}
	if got := Hint("Gardening", names); got != "" {
		t.Errorf("hint %q", got)
	}
}
