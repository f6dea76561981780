package secureserving

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// Metrics is the flags of which metrics are shown, named as upstream's.
type Metrics struct {
	hidden   string
	disabled []string
	labels   map[string]string // metric,label to values
	manifest string

	allowed map[string]map[string][]string // values by metric and label
}

func (m *Metrics) flags(f *pflag.FlagSet) {
	f.StringVar(&m.hidden, "show-hidden-metrics-for-version", "", "`version` whose hidden metrics are shown: the previous one; here none is hidden")
	f.StringSliceVar(&m.disabled, "disabled-metrics", nil, "`names` of metrics that are not shown")
	f.StringToStringVar(&m.labels, "allow-metric-labels", nil, "`values` that a label of a metric may have, all others are shown as unexpected: metric,label=a,b")
	f.StringVar(&m.manifest, "allow-metric-labels-manifest", "", "`file` that says the same")
}

// previousMinor is the only version that --show-hidden-metrics-for-version may have.
const previousMinor = "1.35"

var metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)

// validate reads the lists of labels.
func (m *Metrics) validate() error {
	var errs []error
	if m.hidden != "" && m.hidden != previousMinor {
		errs = append(errs, fmt.Errorf("--show-hidden-metrics-for-version must be omitted or have the value '%v'. Only the previous minor version is allowed", previousMinor))
	}
	for _, name := range m.disabled {
		if !metricName.MatchString(name) {
			errs = append(errs, fmt.Errorf("--disabled-metrics: %q is not the name of a metric", name))
		}
	}
	m.allowed = map[string]map[string][]string{}
	allow := func(flag string, lists map[string]string) {
		for _, key := range slices.Sorted(maps.Keys(lists)) {
			metric, label, ok := strings.Cut(key, ",")
			if !ok || !metricName.MatchString(metric) || !metricName.MatchString(label) {
				errs = append(errs, fmt.Errorf("--%s: %q is not of the form metric,label", flag, key))
				continue
			}
			if m.allowed[metric] == nil {
				m.allowed[metric] = map[string][]string{}
			}
			m.allowed[metric][label] = strings.Split(lists[key], ",")
		}
	}
	if m.manifest != "" {
		lists, b := map[string]string{}, []byte(nil)
		b, err := os.ReadFile(m.manifest)
		if err == nil {
			err = yaml.UnmarshalStrict(b, &lists)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--allow-metric-labels-manifest: %w", err))
		}
		allow("allow-metric-labels-manifest", lists)
	}
	allow("allow-metric-labels", m.labels)
	return errors.Join(errs...)
}

// unexpected is what a label is that has no value it may have.
const unexpected = "unexpected"

// gatherer shows of g what may be shown.
func (m *Metrics) gatherer(g prometheus.Gatherer) prometheus.Gatherer {
	if len(m.disabled) == 0 && len(m.allowed) == 0 {
		return g
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := g.Gather()
		all = slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return slices.Contains(m.disabled, f.GetName()) })
		for _, f := range all {
			if labels := m.allowed[f.GetName()]; labels != nil {
				f.Metric = restrict(f.Metric, labels)
			}
		}
		return all, err
	})
}

// restrict replaces values that labels may not have, and sums up what is the same then.
func restrict(list []*dto.Metric, allowed map[string][]string) (out []*dto.Metric) {
	at := map[string]*dto.Metric{}
	for _, one := range list {
		var key strings.Builder
		for _, l := range one.Label {
			if values, ok := allowed[l.GetName()]; ok && !slices.Contains(values, l.GetValue()) {
				value := unexpected
				l.Value = &value
			}
			fmt.Fprintf(&key, "%q", l.GetValue())
		}
		if first := at[key.String()]; first != nil {
			add(first, one)
			continue
		}
		at[key.String()] = one
		out = append(out, one)
	}
	return out
}

// add counts b in a.
func add(a, b *dto.Metric) {
	sum := func(to *float64, n float64) *float64 { n += *to; return &n }
	count := func(to *uint64, n uint64) *uint64 { n += *to; return &n }
	switch {
	case a.Counter != nil && b.Counter != nil:
		a.Counter.Value = sum(a.Counter.Value, b.Counter.GetValue())
	case a.Gauge != nil && b.Gauge != nil:
		a.Gauge.Value = sum(a.Gauge.Value, b.Gauge.GetValue())
	case a.Histogram != nil && b.Histogram != nil:
		a.Histogram.SampleCount = count(a.Histogram.SampleCount, b.Histogram.GetSampleCount())
		a.Histogram.SampleSum = sum(a.Histogram.SampleSum, b.Histogram.GetSampleSum())
		for i, bucket := range a.Histogram.Bucket {
			if i < len(b.Histogram.Bucket) {
				bucket.CumulativeCount = count(bucket.CumulativeCount, b.Histogram.Bucket[i].GetCumulativeCount())
			}
		}
	}
}
