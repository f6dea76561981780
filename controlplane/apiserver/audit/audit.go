// Package audit is the audit log: the user, request and result of each call. It
// reads the policy file and the notes that the filters and handlers keep of a
// request, and writes events to a log or to a webhook.
package audit

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	upstream "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/internal/run"
)

// A Sink takes events, which it may keep but not change. False: it could not.
type Sink interface{ Process(*auditv1.Event) bool }

type sink struct {
	Sink
	batch  *Batch // in it; nil: none
	name   string
	strict bool
}

var failed = promauto.NewCounterVec(prometheus.CounterOpts{
	Name: "apiserver_audit_error_total",
	Help: "Events that could not be written down, by where they should have been.",
}, []string{"plugin"})

// Policy says which requests concern whom, how much of them is written down,
// and where.
type Policy struct {
	rules   upstream.PolicyRuleEvaluator
	sinks   []sink
	room    int // bytes of the longest body that a sink takes
	dropped atomic.Int64
}

// Load reads a policy file. Without sinks nothing is written down.
func Load(file string) (*Policy, error) {
	p, err := policy.LoadPolicyFromFile(file)
	if err != nil {
		return nil, err
	}
	return &Policy{rules: policy.NewPolicyRuleEvaluator(p)}, nil
}

// longestBody bounds what is kept of an answer until it is written down, where
// nothing is truncated. Upstream keeps all; no object and no page comes near.
const longestBody = 64 << 20

// To adds where events go, under the name that its failures are counted by.
// Requests that a strict sink cannot note are refused.
func (p *Policy) To(name string, s Sink, strict bool, t Truncating) {
	batch, _ := s.(*Batch)
	room := int64(longestBody)
	if t.Enabled {
		room = min(room, t.MaxEvent)
		s = truncate{s, t.MaxEvent}
	}
	p.room = max(p.room, int(room))
	p.sinks = append(p.sinks, sink{s, batch, name, strict})
}

// Run sends what batches gather until ctx ends, and then what is left of it.
func (p *Policy) Run(ctx context.Context) {
	var wg run.Group
	defer wg.Wait()
	for _, s := range p.sinks {
		if b := s.batch; b != nil {
			wg.Loop(ctx, "audit: write", func(ctx context.Context) {
				b.Run(ctx, func(n int) {
					p.dropped.Add(int64(n))
					failed.WithLabelValues(s.name).Add(float64(n))
				})
			})
		}
	}
}

// Dropped is how many events a sink could not take.
func (p *Policy) Dropped() int64 { return p.dropped.Load() }

// process hands an event to every sink.
func (p *Policy) process(ev *auditv1.Event) bool {
	ok := true
	upstream.ObserveEvent(context.Background())
	for _, s := range p.sinks {
		if !s.Process(ev) {
			p.dropped.Add(1)
			failed.WithLabelValues(s.name).Inc()
			ok = ok && !s.strict
		}
	}
	return ok
}

// level is what the policy wants of a request.
func (p *Policy) level(a authorizer.Attributes) (l auditv1.Level, omit func(auditv1.Stage) bool, omitManaged bool) {
	c := p.rules.EvaluatePolicyRule(a)
	return auditv1.Level(c.Level), func(s auditv1.Stage) bool {
		return slices.ContainsFunc(c.OmitStages, func(o upstreamStage) bool { return string(o) == string(s) })
	}, c.OmitManagedFields
}
