package criconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestShares(t *testing.T) {
	for milli, want := range map[int64]int64{0: 2, 1: 2, 100: 102, 1000: 1024, 1 << 30: 262144} {
		if got := CPUShares(milli); got != want {
			t.Errorf("%dm: %d shares, want %d", milli, got, want)
		}
	}
	if got := CPUQuota(1, CPUPeriod); got != 1000 {
		t.Errorf("quota of 1m: %d", got)
	}
}

func TestHugepageSize(t *testing.T) {
	for name, want := range map[corev1.ResourceName]string{"hugepages-2Mi": "2MB", "hugepages-1Gi": "1GB", "cpu": ""} {
		if got, _ := hugepageSize(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
