package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A histogram counts into buckets without a lock. Its unit is that of its
// bounds; the sum is kept in billionths of it.
type histogram struct {
	bounds []float64
	counts []atomic.Uint64 // one more than bounds
	sum    atomic.Int64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
}

func (h *histogram) took(d time.Duration) { h.add(d.Seconds(), int64(d)) }

// size is for histograms of bytes; their sum is kept in bytes.
func (h *histogram) size(n int64) { h.add(float64(n), n) }

func (h *histogram) add(v float64, sum int64) {
	h.counts[h.bucket(v)].Add(1)
	h.sum.Add(sum)
}

// all counts sizes that come together: neighbours mostly share a bucket.
func (h *histogram) all(sizes []int) {
	sum := int64(0)
	for i := 0; i < len(sizes); {
		b, from := h.bucket(float64(sizes[i])), i
		for i < len(sizes) && h.bucket(float64(sizes[i])) == b {
			sum += int64(sizes[i])
			i++
		}
		h.counts[b].Add(uint64(i - from))
	}
	if sum != 0 {
		h.sum.Add(sum)
	}
}

func (h *histogram) bucket(v float64) (i int) {
	for i < len(h.bounds) && v > h.bounds[i] { // most are in the first few
		i++
	}
	return i
}

// metric is the histogram as of now; unit is what its sum is kept in.
func (h *histogram) metric(d *prometheus.Desc, unit float64, labels ...string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(h.bounds))
	total := uint64(0)
	for i, b := range h.bounds {
		total += h.counts[i].Load()
		buckets[b] = total
	}
	total += h.counts[len(h.bounds)].Load()
	return prometheus.MustNewConstHistogram(d, total, float64(h.sum.Load())*unit, buckets, labels...)
}

const (
	nanoseconds = 1e-9
	bytes       = 1
)

func (h *histogram) count() (n uint64) {
	for i := range h.counts {
		n += h.counts[i].Load()
	}
	return n
}

func counter(d *prometheus.Desc, v uint64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func gauge(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}
