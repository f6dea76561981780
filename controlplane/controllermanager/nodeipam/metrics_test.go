package nodeipam

import (
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// TestMetrics: a part that two nodes show, as while one is replaced, is one that is in use.
func TestMetrics(t *testing.T) {
	p, err := newPool(netip.MustParsePrefix("10.99.0.0/22"), 24)
	if err != nil {
		t.Fatal(err)
	}
	one := netip.MustParsePrefix("10.99.1.0/24")
	for _, by := range []int{1, 1, -1} {
		p.take(one, by)
	}
	label := "10.99.0.0/22"
	if n := valueOf(usage.WithLabelValues(label)); n != 0.25 {
		t.Errorf("%v of the range is in use, want a quarter", n)
	}
	p.take(one, -1)
	if a, r, u := valueOf(allocations.WithLabelValues(label)), valueOf(releases.WithLabelValues(label)), valueOf(usage.WithLabelValues(label)); a != 1 || r != 1 || u != 0 {
		t.Errorf("%v allocations, %v releases, %v in use", a, r, u)
	}
}

// valueOf is what a counter or a gauge counts.
func valueOf(m prometheus.Metric) float64 {
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		return -1
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}
