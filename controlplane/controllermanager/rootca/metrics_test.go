package rootca

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestMetrics: looks are counted by what the API server answered.
func TestMetrics(t *testing.T) {
	for code, err := range map[string]error{"200": nil, "500": errors.New("broken"), "401": fmt.Errorf("update: %w", apierrors.NewUnauthorized("no"))} {
		before := valueOf(syncs.WithLabelValues(code))
		observe(time.Now(), err)
		if n := valueOf(syncs.WithLabelValues(code)) - before; n != 1 {
			t.Errorf("%v is counted %v times as %s", err, n, code)
		}
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
