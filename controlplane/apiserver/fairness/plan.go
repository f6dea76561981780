package fairness

import (
	"cmp"
	"math"
	"slices"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/shufflesharding"

	"knarr/controlplane/apiserver/watchcache"
)

// A plan is the configuration as of two revisions.
type plan struct {
	revisions [2]int64
	schemas   []*schema // in the order they are tried
	last      *schema   // for what none matches
	levels    map[string]*level
}

func (d *Dispatcher) current() *plan {
	revisions := [2]int64{d.flowSchemas.Changed(), d.priorityLevels.Changed()}
	if p := d.plan.Load(); p != nil && p.revisions == revisions {
		return p
	}
	d.making.Lock()
	defer d.making.Unlock()
	old := d.plan.Load()
	if old != nil && old.revisions == revisions {
		return old
	}
	var schemas []*flowcontrolv1.FlowSchema
	watchcache.Each(d.flowSchemas, "", func(s *flowcontrolv1.FlowSchema) bool {
		schemas = append(schemas, s)
		return true
	})
	var levels []*flowcontrolv1.PriorityLevelConfiguration
	watchcache.Each(d.priorityLevels, "", func(l *flowcontrolv1.PriorityLevelConfiguration) bool {
		levels = append(levels, l)
		return true
	})
	p := &plan{revisions: revisions, levels: map[string]*level{}}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range share(withMandatoryLevels(levels), d.total) {
		var l *level
		if old != nil {
			l = old.levels[s.config.Name]
		}
		if l == nil || l.uid[0] != string(s.config.UID) {
			l = newLevel(s.config)
		}
		l.configure(s)
		p.levels[s.config.Name] = l
	}
	d.order(p, withMandatorySchemas(schemas))
	d.tallies.keep(p)
	// Levels that are gone serve those they hold, with what was theirs.
	if old != nil {
		for name, l := range old.levels {
			if p.levels[name] == l {
				continue
			}
			l.gone, l.least, l.most = true, l.nominal, l.nominal
			if l.executing > 0 || l.waiting() {
				d.seats.draining = append(d.seats.draining, l)
			}
		}
	}
	d.seats.reset(p.levels, d.total)
	d.seats.dispatch()
	d.plan.Store(p)
	return p
}

func withMandatoryLevels(levels []*flowcontrolv1.PriorityLevelConfiguration) []*flowcontrolv1.PriorityLevelConfiguration {
	for _, m := range bootstrap.MandatoryPriorityLevelConfigurations {
		if !slices.ContainsFunc(levels, func(l *flowcontrolv1.PriorityLevelConfiguration) bool { return l.Name == m.Name }) {
			levels = append(levels, m)
		}
	}
	return levels
}

func withMandatorySchemas(schemas []*flowcontrolv1.FlowSchema) []*flowcontrolv1.FlowSchema {
	for _, m := range bootstrap.MandatoryFlowSchemas {
		if !slices.ContainsFunc(schemas, func(s *flowcontrolv1.FlowSchema) bool { return s.Name == m.Name }) {
			schemas = append(schemas, m)
		}
	}
	return schemas
}

// order keeps the schemas whose level exists, by precedence and then by name.
func (d *Dispatcher) order(p *plan, all []*flowcontrolv1.FlowSchema) {
	slices.SortFunc(all, func(a, b *flowcontrolv1.FlowSchema) int {
		return cmp.Or(cmp.Compare(a.Spec.MatchingPrecedence, b.Spec.MatchingPrecedence), cmp.Compare(a.Name, b.Name))
	})
	for _, s := range all {
		l := p.levels[s.Spec.PriorityLevelConfiguration.Name]
		if l == nil {
			continue
		}
		made := &schema{name: s.Name, uid: []string{string(s.UID)}, rules: s.Spec.Rules, level: l, tally: d.tallyOf(s.Name, l)}
		if m := s.Spec.DistinguisherMethod; m != nil {
			made.by = m.Type
		}
		p.schemas = append(p.schemas, made)
		if s.Name == flowcontrolv1.FlowSchemaNameCatchAll {
			p.last = made
		}
	}
}

// A portion is what a level may use.
type portion struct {
	config *flowcontrolv1.PriorityLevelConfiguration
	// nominal are its own seats; it always has least of them, and no more than
	// most however many are free.
	nominal, least, most int
	queuing              *flowcontrolv1.QueuingConfiguration
	dealer               *shufflesharding.Dealer
}

// share splits the seats by shares.
func share(levels []*flowcontrolv1.PriorityLevelConfiguration, total int) []portion {
	var portions []portion
	shares := func(l *flowcontrolv1.PriorityLevelConfiguration) (nominal, lendable int32) {
		switch s := &l.Spec; {
		case s.Limited != nil:
			return orElse(s.Limited.NominalConcurrencyShares, 30), orElse(s.Limited.LendablePercent, 0)
		case s.Exempt != nil:
			return orElse(s.Exempt.NominalConcurrencyShares, 0), orElse(s.Exempt.LendablePercent, 0)
		}
		return 0, 0
	}
	sum := 0.0
	for _, l := range levels {
		n, _ := shares(l)
		sum += float64(n)
	}
	for _, l := range levels {
		n, lendable := shares(l)
		p := portion{config: l}
		if sum > 0 {
			p.nominal = int(math.Ceil(float64(total) * float64(n) / sum))
		}
		p.least = p.nominal - int(math.Round(float64(p.nominal)*float64(lendable)/100))
		p.most = math.MaxInt
		if m := l.Spec.Limited; m != nil {
			if m.BorrowingLimitPercent != nil {
				p.most = p.nominal + int(math.Round(float64(p.nominal)*float64(*m.BorrowingLimitPercent)/100))
			}
			if q := m.LimitResponse.Queuing; q != nil {
				if dealer, err := shufflesharding.NewDealer(int(q.Queues), int(q.HandSize)); err == nil {
					p.queuing, p.dealer = q, dealer
				}
			}
		}
		portions = append(portions, p)
	}
	return portions
}

func orElse(p *int32, otherwise int32) int32 {
	if p == nil {
		return otherwise
	}
	return *p
}
