package metrics

import (
	"errors"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// distinct gathers from each in turn; of two families of one name the first
// is told.
type distinct []prometheus.Gatherer

func (d distinct) Gather() ([]*dto.MetricFamily, error) {
	var (
		all  []*dto.MetricFamily
		errs []error
		seen = map[string]bool{}
	)
	for _, g := range d {
		families, err := g.Gather()
		if err != nil {
			errs = append(errs, err)
		}
		for _, f := range families {
			if !seen[f.GetName()] {
				seen[f.GetName()] = true
				all = append(all, f)
			}
		}
	}
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all, errors.Join(errs...)
}
