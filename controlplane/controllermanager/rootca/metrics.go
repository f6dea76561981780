package rootca

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

var (
	syncs = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "root_ca_cert_publisher_sync_total",
		Help: "[ALPHA] Looks at a namespace, by the code of what the API server answered"}, []string{"code"})
	syncTook = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "root_ca_cert_publisher_sync_duration_seconds",
		Help: "[ALPHA] How long looks at a namespace took", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}, []string{"code"})
)

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector { return []prometheus.Collector{syncs, syncTook} }

// observe counts a look that began at a time.
func observe(began time.Time, err error) {
	code := 200
	if err != nil {
		code = 500
		if status, ok := errors.AsType[*apierrors.StatusError](err); ok && status.ErrStatus.Code != 0 {
			code = int(status.ErrStatus.Code)
		}
	}
	syncs.WithLabelValues(strconv.Itoa(code)).Inc()
	syncTook.WithLabelValues(strconv.Itoa(code)).Observe(time.Since(began).Seconds())
}
